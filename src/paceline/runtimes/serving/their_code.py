"""Where in the user's own code something went wrong."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

OURS = str(Path(__file__).parents[2])
STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})


def traceback_from_there(problem: BaseException) -> str:
    """Its traceback from where the user's own code begins."""
    own = problem.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.startswith(OURS):
        own = own.tb_next
    return "".join(traceback.format_exception(type(problem), problem, own or problem.__traceback__))


def with_line(problem: BaseException) -> str:
    """What it says, and which line of the user's own it came from; not where only ours and libraries took part."""
    lines = [
        f"{_short(frame.f_code.co_filename)}, line {line}"
        for frame, line in traceback.walk_tb(problem.__traceback__)
        if not frame.f_code.co_filename.startswith((OURS, *STANDARD, *INSTALLED, "<frozen"))
    ]
    return f"{problem} ({lines[-1]})" if lines else str(problem)


def _short(path: str) -> str:
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith(os.pardir) else relative
