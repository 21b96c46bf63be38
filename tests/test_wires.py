"""Runs whose gradients came over sockets, trained again: with shards and without, compressed, and the impossible."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import training_functions as functions
from socket_group import over_sockets
from test_socket_runs import train_layers

from paceline import RayCluster
from paceline.core.errors import ConfigurationError
from paceline.experiment.callbacks import Callback, Run
from paceline.experiment.configuration import Configuration, read_configuration
from paceline.experiment.group import Group
from paceline.experiment.training import launch
from paceline.experiment.verification import train_again
from paceline.experiment.wires import wire_of
from paceline.recording.progress_log import Measurement


def told(*clusters: RayCluster | None) -> Configuration:
    """Of a run that was resumed on all but the first of these."""
    found = Configuration("bsp", Group(2), 1, 0, "auto", "train")
    wires: tuple[str, ...] = ()
    for cluster in clusters:
        found = msgspec.structs.replace(found, cluster=cluster, wires=wires)
        wires = found.all_wires
    return found


BF16 = RayCluster(compression="bf16", transport="tcp")


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        (told(RayCluster(compression="int8", transport="tcp")), r"\(int8\), and what arrived .* hangs on more"),
        (told(RayCluster(compression="topk:share=0.1")), "runs with compression none can, and with bf16 and"),
        (told(RayCluster(compression="bf16")), "its trace does not say which workers these were"),
        (told(BF16, None), r"another compression of its gradients \(bf16 by tcp, then none\)"),
    ],
)
def test_what_the_trace_does_not_tell_cannot_be_trained_again(configuration: Configuration, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wire_of(Path("run"), configuration)


def test_gradients_that_came_as_they_are_stay_so() -> None:
    assert wire_of(Path("run"), told(None, RayCluster(transport="tcp"), RayCluster(), None)) is None
    assert wire_of(Path("run"), told(BF16, BF16)) is not None


class StopAt(Callback):
    def __init__(self, updates: int) -> None:
        self._updates = updates

    def measured(self, run: Run, measurement: Measurement) -> None:
        if measurement.updates >= self._updates:
            run.stop("it is enough for now")


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_a_run_on_shards_that_is_resumed_with_others_is_trained_again_to_the_bit(
    compression: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    train = partial(train_layers, pause=0.01)

    def go_on(servers: int, **options: Any) -> None:
        cluster = RayCluster(servers=servers, compression=compression, transport="tcp")
        with over_sockets("tcp", servers, compression=compression):
            launch(train, workers=2, policy="asp", epochs=4, device="cpu", cluster=cluster, **options)

    go_on(2, run_dir=run_dir, callbacks=[StopAt(1)], checkpoint_every="5 updates")
    go_on(3, resume=run_dir, callbacks=[StopAt(20)])
    go_on(1, resume=run_dir)
    assert read_configuration(run_dir).wires == ("none" if compression == "none" else "bf16 by tcp",)
    verdict = train_again(run_dir, train)
    assert verdict.differs_at is None and verdict.updates == 4 * functions.SAMPLES // functions.BATCH
