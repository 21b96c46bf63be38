"""A run goes on with another group, other shards, and on one machine: over sockets, without anybody who places it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moving_runs import comes_to_the_weights_of_its_trace, is_whole, move
from socket_group import over_sockets
from test_socket_runs import StopAt, train_layers

from paceline.experiment.resuming import NotCorrectedWarning
from paceline.experiment.training import launch
from paceline.recording.trace import Trace

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("policy", "kind"), [("bsp", "adamw"), ("asp", "momentum")])
def test_a_run_moves_and_every_sample_counts_once(policy: str, kind: str, tmp_path: Path) -> None:
    result = move(tmp_path / "run", policy, kind, partial(over_sockets, "tcp"))
    is_whole(result, tmp_path / "run")
    if policy == "bsp":
        comes_to_the_weights_of_its_trace(result, tmp_path / "run", kind)
    else:
        rule = Trace(tmp_path / "run" / "trace.jsonl").header.updates
        assert rule is not None and "worker moments" in rule.correction


def test_a_run_that_began_with_one_worker_says_that_it_does_not_correct_what_is_stale(tmp_path: Path) -> None:
    options: dict[str, Any] = {"policy": "asp", "epochs": 8, "run_dir": tmp_path / "run", "resume": "auto"}
    slow = partial(train_layers, pause=0.02)
    launch(slow, workers=1, callbacks=[StopAt(4)], **options)
    with pytest.warns(NotCorrectedWarning, match="those of a larger group are applied as they are"):
        result = launch(slow, workers=2, **options)
    assert result.samples == 8 * 96
