"""The examples, and the Python of the README, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(path: Path) -> None:
    finished = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "iterations/s" in finished.stdout


def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "elastic-bsp" in capsys.readouterr().out
