"""`paceline watch`: runs in a browser, as they go on."""

from __future__ import annotations

import contextlib
import sys
import webbrowser
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from paceline.cli.arguments import check_price
from paceline.core.errors import ConfigurationError

OPENED = ".watch-open.html"
PORT = 7223  # the word pace on the keys of a telephone
HERE = ("127.0.0.1", "::1", "localhost")


def watch_command(
    directory: Annotated[Path, Argument(metavar="[RUN|DIR]", help="A run, or where the runs are.")] = Path("runs"),
    port: Annotated[int, Option(min=0, max=65535, help="0: any that is free.")] = PORT,
    host: Annotated[str, Option(help="The address to serve at. Others than this machine's own can be reached.")] = HERE[
        0
    ],
    price: Annotated[float | None, Option(help="Of one worker for an hour: losses are told in money as well.")] = None,
    read_only: Annotated[bool, Option("--read-only", help="Without buttons: the pages only show.")] = False,
    open_it: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show runs in a browser, live: what each worker does and why, and buttons to scale, switch, stop and evict.

    Reads run directories, so it asks nothing of a run, and may be started and ended at any time."""
    check_price(price)
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ConfigurationError("paceline watch needs: pip install 'paceline[dashboard]'") from None
    from paceline.dashboard.serving import watched

    found = watched(directory, host, port, price=price, steers=not read_only)
    print(f"{directory}: {found.address}", flush=True)
    if host not in HERE:
        may = "see" if read_only else "see and steer"
        print(
            f"paceline: whoever can reach this address, and knows it, may {may} these runs; nothing is encrypted",
            file=sys.stderr,
        )
    print("Ctrl-C ends this, and no run", file=sys.stderr, flush=True)
    with _opened(found.address, found.kept_in) if open_it else contextlib.nullcontext():
        found.serve()


@contextlib.contextmanager
def _opened(address: str, directory: Path) -> Iterator[None]:
    """In a browser, by way of a file that only its user can read: whoever is on this machine sees the arguments that
    the browser is started with, and must not see the token."""
    from paceline.recording.lines import write_privately

    page = directory.resolve() / OPENED
    try:
        write_privately(page, f'<meta http-equiv="refresh" content="0;url={escape(address)}">'.encode())
    except OSError as problem:
        print(f"paceline: {page}: {problem.strerror}; open the address above by hand", file=sys.stderr, flush=True)
    else:
        webbrowser.open(page.as_uri())
    try:
        yield
    finally:
        page.unlink(missing_ok=True)
