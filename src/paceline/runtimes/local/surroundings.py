"""What a new process takes over from the one that launches a run: paths, arguments, environment, and its main module.

A script is imported anew in every process, as multiprocessing does it, so that whatever it sets at its top level holds
there too. A notebook, an interactive session and `python -c` have nothing that could be imported: what was defined
there travels by value (memory.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from multiprocessing import context, process, spawn
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import msgspec

from paceline.runtimes.serving.their_code import INSTALLED, OURS, STANDARD

NOT_NEEDED = ("IPython", "ipykernel", "_pytest", "pytest", "xdist")  # of sessions, which no worker takes part in
GPU = "/dev/nvidiactl"


class Surroundings(msgspec.Struct, frozen=True):
    prepared: dict[str, Any]  # as multiprocessing.spawn.prepare wants it
    main: dict[str, Any]  # likewise: only how to import the main module
    environment: dict[str, str]

    def take_over(self, name: str) -> None:
        """This process looks like the one that launched, under a name of its own. Its main module comes later."""
        os.environ.clear()
        os.environ.update(self.environment)
        spawn.prepare({"name": name, **self.prepared})

    def import_main(self) -> None:
        spawn.prepare(self.main)


def surroundings() -> Surroundings:
    """Those of this process."""
    prepared: dict[str, Any] = {
        "authkey": bytes(process.current_process().authkey),
        "sys_path": [entry or os.getcwd() for entry in sys.path],
        "sys_argv": sys.argv,
        "dir": os.getcwd(),
    }
    chosen = context._default_context.get_start_method(allow_none=True)
    if chosen is not None:
        prepared["start_method"] = chosen
    return Surroundings(prepared, how_to_import_main(), dict(os.environ))


def how_to_import_main() -> dict[str, str]:
    """For multiprocessing.spawn.prepare; empty: the main module cannot be imported, or there is nothing in it."""
    main = sys.modules["__main__"]
    if is_interactive() or getattr(getattr(main, "main", None), "__module__", "").startswith("paceline.cli"):
        return {}
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path):
        return {}
    return {"init_main_from_path": os.path.abspath(path)}


def is_interactive() -> bool:
    """Whether more may be defined in the main module than its file says."""
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


def name_of_main() -> str:
    """Of the file that every process imports; empty: there is none."""
    found = how_to_import_main()
    return found.get("init_main_from_name") or os.path.basename(found.get("init_main_from_path", ""))


def imported_packages() -> list[str]:
    """Modules, ours and installed ones, that the user's own refer to: imported once, they are not in each worker.

    Not where there are GPUs: a package may look for them while it is imported, and CUDA does not survive a fork.
    """
    if os.path.exists(GPU):
        return []
    wanted = dict.fromkeys(name for module in list(sys.modules.values()) for name in _modules_behind(module))
    shared = (*INSTALLED, OURS)
    return [name for name in wanted if _lies_in(sys.modules.get(name), shared) and not name.startswith(NOT_NEEDED)]


def _modules_behind(module: ModuleType) -> Iterator[str]:
    """The names of the modules from which a module of the user's has something."""
    is_main = module is sys.modules["__main__"]
    if not is_main and (not _lies_in(module, ("/",)) or _lies_in(module, (*STANDARD, *INSTALLED, OURS))):
        return
    for content in list(vars(module).values()):
        if isinstance(content, ModuleType):
            yield content.__name__
        elif isinstance(content, type | FunctionType | BuiltinFunctionType) and isinstance(content.__module__, str):
            yield content.__module__


def _lies_in(module: ModuleType | None, directories: tuple[str, ...]) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and path.startswith(directories)
