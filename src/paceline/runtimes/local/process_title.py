"""What `ps`, `top` and `pgrep` show of a process."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

SHORT_NAME = 15  # characters that Linux keeps as the name of a process
COMMAND_LINE = slice(45, 47)  # where it begins and ends in memory: fields 48 and 49 of /proc/self/stat, the state is 3


def show_as(title: str, short: str) -> None:
    """`title` in place of the command line, as `ps aux` and `pgrep -f` show it; `short` as the name, as in `top`.

    The command line is memory of the process itself, which is overwritten: a title that does not fit is cut off.
    """
    with contextlib.suppress(OSError, ValueError):  # a name is worth no failure
        Path("/proc/self/comm").write_text(short[:SHORT_NAME])
        fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
        begin, end = (int(field) for field in fields[COMMAND_LINE])
        if 0 < begin < end:
            content = title.encode()[: end - begin - 1]
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, content, len(content))
