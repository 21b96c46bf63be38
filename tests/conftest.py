"""Options of the test run."""

from __future__ import annotations

import os

# Before torch is imported, here and in every process that a test starts: idle threads of one process keep cores from
# another's, and the tests keep all cores busy by themselves.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("COLUMNS", None)  # whoever runs the tests may set it, and tables would follow

import pytest

from paceline.runtimes.driver import Driver

Driver.validate = True  # in every run of every test the views of the layers are compared after each event


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write the scenario transcripts anew, for eyes to review"
    )
