"""`paceline download`: a data set, where there is a network."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def download_command(
    name: Annotated[str, Argument(help="fashion-mnist or cifar10.")],
    into: Annotated[Path | None, Option(help="A folder for it, instead of paceline's in the user's cache.")] = None,
) -> None:
    """Fetch a data set as it was published, and check it. What is there already is not fetched again."""
    from paceline.training.downloads import download  # what speaks HTTPS takes a moment to import

    folder = download(name, into, partial(print, file=sys.stderr))
    where = "" if into is None else f" --data {shlex.quote(str(folder))}"
    print(f"{name} is in {folder}; to train on it: paceline train {name}{where}")
