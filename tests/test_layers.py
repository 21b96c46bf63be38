"""Who may import whom, and who may write what. The import rules themselves stand in pyproject.toml."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import paceline
from paceline.core.progress import Progress

ROOT = Path(paceline.__file__).parents[2]
SOURCE = ROOT / "src" / "paceline"
WRITERS = {"announce", "admit", "arrive", "release", "restart", "leave"}


@pytest.mark.slow
def test_the_layers_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0, capsys.readouterr().out


def test_importing_paceline_imports_nothing_heavy() -> None:
    heavy = ("torch", "ray", "numpy", "scipy", "rich")
    code = f"import sys, paceline; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_public_names_are_there_and_others_are_refused() -> None:
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    with pytest.raises(AttributeError, match="module 'paceline' has no attribute 'lunch'"):
        _ = paceline.lunch


@pytest.mark.parametrize("path", sorted((SOURCE / "policies").glob("*.py")), ids=lambda path: path.stem)
def test_a_policy_reads_progress_and_never_writes_it(path: Path) -> None:
    assert all(hasattr(Progress, name) for name in WRITERS)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "progress":
            assert node.attr not in WRITERS, f"{path.name}, line {node.lineno} writes progress"
            assert isinstance(node.ctx, ast.Load), f"{path.name}, line {node.lineno} writes progress"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_are_short_and_say_what_they_are_for(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text))


def test_the_oldest_torch_that_is_promised_has_what_is_used() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    promised = re.search(r'"torch>=(\d+)\.(\d+)"', project)
    assert promised is not None
    used = {"torch.accelerator": (2, 6)}  # name -> the first version that has it
    sources = [path.read_text() for path in SOURCE.rglob("*.py")]
    for name, since in used.items():
        assert any(name in source for source in sources) and tuple(map(int, promised.groups())) >= since
