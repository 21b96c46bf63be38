"""A user's own functions for trials in virtual time: what tells them apart, and how each worker gets its own."""

from __future__ import annotations

import hashlib
import marshal
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.errors import ConfigurationError
from paceline.experiment.script import Script


class OwnFunctions(NamedTuple):
    """`train(worker)`, and `evaluate(state)` if there is one."""

    train: Callable[..., Any]
    evaluate: Callable[..., Any] | None = None

    @property
    def crosses(self) -> bool:
        """Whether another process could run them."""
        return all(_pickled(function) is not None for function in self if function is not None)


def own_functions(train: Any, evaluate: Any) -> OwnFunctions:
    """Functions of the script that runs are loaded anew for every simulated worker, as a process of `launch` does it;
    those of modules, notebooks and other functions are shared by all."""
    for function, what in ((train, "train(worker)"), (evaluate, "evaluate(state)")):
        if not callable(function) and not (function is evaluate is None):
            raise ConfigurationError(f"{what} must be a function, not {function!r:.80}")
    return OwnFunctions(_of_the_script(train), None if evaluate is None else _of_the_script(evaluate))


def _of_the_script(function: Callable[..., Any]) -> Callable[..., Any]:
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    name = getattr(function, "__qualname__", "")
    if path is None or not Path(path).is_file() or getattr(main, name, None) is not function:
        return function
    return Script(Path(path).resolve(), tuple(sys.argv[1:]), name)


def anew(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """Gives the function as a new process would find it, as far as that is possible in this one."""
    if isinstance(function, Script):
        return function.anew
    pickled = _pickled(function)
    if pickled is None:
        return lambda: function
    return lambda: pickle.loads(pickled)


def _pickled(function: Callable[..., Any]) -> bytes | None:
    """None: it stands in a notebook, or in another function."""
    if getattr(function, "__module__", "") == "__main__" and not isinstance(function, Script):
        return None  # of a notebook: a new process has another main module
    try:
        return pickle.dumps(function)
    except Exception:  # pickling runs code of the user's classes, which may raise anything
        return None


def digest_of(functions: OwnFunctions) -> str:
    """Changes with their code, so that results of other code are not taken for theirs."""
    found = hashlib.sha256()
    for function in functions:
        if isinstance(function, Script):
            found.update(function.path.read_bytes())
        elif function is not None:
            code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
            found.update(repr(function).encode() if code is None else marshal.dumps(code))
    return found.hexdigest()[:16]
