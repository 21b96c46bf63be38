"""A user's script as something that worker processes can run: they load it by its path."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.core.errors import ConfigurationError, PacelineError
from paceline.experiment.given import check_function

# One name in every process, so that a class of the script that crosses between them is found again.
MODULE = "__paceline_script__"


@dataclass(frozen=True)
class Script:
    """One function of a script, with the arguments that the script finds in sys.argv."""

    path: Path
    arguments: tuple[str, ...]
    function: str

    @property
    def description(self) -> str:
        """As one would type it."""
        return " ".join([str(self.path), *self.arguments])

    def anew(self) -> Callable[..., Any]:
        """The function in a module of its own, loaded when it is first called: as a new process would find it."""
        found: list[Callable[..., Any]] = []

        def call(*values: Any) -> Any:
            if not found:
                forget_script()
                found.append(getattr(load_script(self.path, self.arguments), self.function))
            return found[0](*values)

        return call

    def __call__(self, *values: Any) -> Any:
        return getattr(load_script(self.path, self.arguments), self.function)(*values)


def load_script(path: Path, arguments: tuple[str, ...]) -> ModuleType:
    """The script as a module, loaded once per process. Its `if __name__ == "__main__"` part does not run."""
    loaded = sys.modules.get(MODULE)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path}: is not a Python script")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *arguments]
    try:
        spec.loader.exec_module(module)
    except PacelineError:
        raise
    except (SyntaxError, ImportError) as problem:
        raise ConfigurationError(f"{path} cannot be loaded: {type(problem).__name__}: {problem}") from None
    except Exception:
        raise PacelineError(f"{path} raised while it was loaded:\n{traceback.format_exc()}") from None
    return module


def forget_script() -> None:
    """The next that asks for it loads it anew."""
    sys.modules.pop(MODULE, None)


def script_functions(path: Path, arguments: tuple[str, ...]) -> tuple[Script, Callable[..., Any] | None]:
    """`train(worker)` of a script, and its `evaluate(state)` if it has one."""
    path = path.resolve()
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such script")
    module = load_script(path, arguments)
    if not callable(getattr(module, "train", None)):
        raise ConfigurationError(f"{path}: has no function train(worker)")
    evaluate = getattr(module, "evaluate", None)
    check_function(f"{path.name}: train", module.train, "worker")
    if callable(evaluate):
        check_function(f"{path.name}: evaluate", evaluate, "state")
    return Script(path, arguments, "train"), Script(path, arguments, "evaluate") if callable(evaluate) else None
