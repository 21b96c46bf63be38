"""The command in this process, for tests of what it prints, refuses and ends with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from paceline.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *begin: str) -> Command:
    """`paceline`, with these words before all that it is called with."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["paceline", *begin, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Outcome(ended.value.code if isinstance(ended.value.code, int) else 0, out, err)

    return run
