"""The token of a directory's page: kept where its runs are, so that a page goes on when its server is started again.

Whoever may read it may also read the runs, and the pipes through which they are steered.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

NAME = ".watch-token"
BYTES = 24


def token_for(directory: Path) -> str:
    """The one that there is, or a new one. Where nothing can be written, it is for this time only."""
    path = directory / NAME
    try:
        if known := _read(path):
            return known
        fresh = secrets.token_urlsafe(BYTES)
        if known is not None:
            path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(fresh)
        return fresh
    except FileExistsError:  # somebody else was a moment faster
        return _read(path) or secrets.token_urlsafe(BYTES)
    except OSError:
        return secrets.token_urlsafe(BYTES)


def _read(path: Path) -> str | None:
    """None: there is none. Empty: it is damaged, or not only its user can have read it."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
                return ""
            found = file.read(200).strip()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return ""
    except OSError as problem:
        if problem.errno == errno.ELOOP:  # a link to something else
            return ""
        raise
    return found if len(found) >= BYTES else ""
