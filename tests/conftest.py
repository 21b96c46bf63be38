"""Options of the test run."""

from __future__ import annotations

import pytest

from paceline.runtimes.driver import Driver

Driver.validate = True  # in every run of every test the views of the layers are compared after each event


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write the scenario transcripts anew, for eyes to review"
    )
