"""Options of the test run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

# Before torch is imported, here and in every process that a test starts: idle threads of one process keep cores from
# another's, and the tests keep all cores busy by themselves.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.pop("COLUMNS", None)  # whoever runs the tests may set it, and tables would follow

import pytest

from paceline.experiment.run_files import RunFiles
from paceline.runtimes.driver import Driver

if TYPE_CHECKING:
    from ray_nodes import Nodes

RunFiles.makes_reports = False  # of hundreds of runs; tests/test_report.py has its own
Driver.validate = True  # in every run of every test the views of the layers are compared after each event


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write the scenario transcripts anew, for eyes to review"
    )


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    """Ray, on this machine. It forgets a node that was killed after three seconds instead of sixteen."""
    from ray_nodes import Nodes  # takes seconds, which the other tests need not wait for

    opened = Nodes(health_check_period_ms=500)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def patient_cluster() -> Iterator[Nodes]:
    """Ray with its own settings: it believes in a node that was killed for sixteen seconds."""
    from ray_nodes import Nodes

    opened = Nodes()
    yield opened
    opened.close()


@pytest.fixture
def believed_nodes(patient_cluster: Nodes) -> Iterator[Nodes]:
    patient_cluster.are("a", "b")
    yield patient_cluster
    patient_cluster.are_left_alone()


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    """A head and the nodes a and b. Whatever a test does with them, nothing of its run may be left."""
    cluster.are("a", "b")
    yield cluster
    cluster.are_left_alone()
