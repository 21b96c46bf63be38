"""The command line. Exit codes: 0 done, 1 the run failed, 2 the input was wrong, 130 interrupted."""

from __future__ import annotations

import io
import os
import sys

from paceline.core.errors import ConfigurationError, PacelineError


def main() -> None:
    """Run the command and turn errors into a sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without block characters is no reason to fail
    try:
        from paceline.cli.app import app  # here, because Ctrl-C may come while half a second of imports goes by

        try:
            app(prog_name="paceline")
        finally:
            print(end="", flush=True)  # here, where a failure to write can still be handled
    except ConfigurationError as problem:
        _fail(str(problem), 2)
    except PacelineError as problem:
        _fail(str(problem), 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output is gone, as with `| head`
        _drop_output()
        sys.exit(1)
    except OSError as problem:
        _drop_output()
        _fail(str(problem), 1)


def _fail(problem: str, code: int) -> None:
    print(f"paceline: error: {problem}", file=sys.stderr)
    sys.exit(code)


def _drop_output() -> None:
    """What stdout still holds cannot be written; without this Python would try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
