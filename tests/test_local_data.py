"""Loader processes of real workers: exactly once, the same bits, and nothing that stays behind."""

from __future__ import annotations

import json
import multiprocessing
import time
from functools import partial
from pathlib import Path

import pytest
import training_functions as functions

from paceline.experiment.balance import balance_of
from paceline.experiment.training import launch
from paceline.experiment.verification import train_again


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] == "Z"
    except OSError:
        return True


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_no_loader_and_what_it_had_ahead_is_done_by_others(tmp_path: Path) -> None:
    train = partial(functions.dies_with_loaders, directory=str(tmp_path))
    result = launch(train, workers=2, policy="asp", epochs=2, run_dir=tmp_path / "run")
    assert result.samples == 2 * functions.SAMPLES
    died = json.loads((tmp_path / "died").read_text())
    assert died["method"] == multiprocessing.get_all_start_methods()[0] and len(died["loaders"]) == 2
    end = time.monotonic() + functions.PATIENCE
    while not all(map(is_dead, died["loaders"])):
        assert time.monotonic() < end, "stopped loader processes outlive their worker"
    assert json.loads((tmp_path / "places").read_text()) == [2, 0, 1]
    balance = balance_of(tmp_path / "run")
    assert balance.adds_up and [epoch.applied for epoch in balance.epochs] == [functions.SAMPLES] * 2
    assert sum(balance.lost_given_again.values()) > 2, "more than the batch that it was at"
    verdict = train_again(tmp_path / "run", train)  # no loop comes beyond its last push, so nobody is killed again
    assert verdict.differs_at is None and verdict.updates == result.summary.updates
