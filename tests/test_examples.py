"""The examples, and the Python of the README, run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    """In a directory of its own, where it may write, and on one thread: idle ones keep cores from other tests."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert finished.returncode == 0, finished.stderr
    assert "iterations/s" in finished.stdout or "accuracy" in finished.stdout


@pytest.mark.slow
def test_the_notebook_runs_and_shows_a_table(tmp_path: Path) -> None:
    """By `jupyter execute`, in a kernel of its own."""
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    copy = tmp_path / "notebook.ipynb"
    copy.write_bytes((ROOT / "examples" / "notebook.ipynb").read_bytes())
    execute = "from nbclient.cli import main; main()"
    command = [sys.executable, "-c", execute, "--inplace", "--timeout=300", str(copy)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    outputs = [output for cell in json.loads(copy.read_bytes())["cells"] for output in cell.get("outputs", [])]
    tables = ["".join(output["data"]["text/plain"]) for output in outputs if output["output_type"] == "display_data"]
    assert len(tables) == 1 and "elastic-bsp" in tables[0] and "samples/s" in tables[0] and "███" in tables[0]
    printed = "".join("".join(output["text"]) for output in outputs if output.get("name") == "stdout")
    assert "32,768 samples" in printed and "asp: " in printed


BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_python_of_the_readme_runs(number: int, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(BLOCKS[number])
    finished = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout


def test_the_readme_shows_training_and_simulation() -> None:
    assert any("paceline.launch" in block for block in BLOCKS) and any("paceline.simulate" in block for block in BLOCKS)
