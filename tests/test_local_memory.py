"""What the server and its workers share is never seen half written, and never overwritten too early."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import training_functions as functions

from paceline.core.messages import ApplyUpdate, Gradient, GradientArrived
from paceline.experiment.training import launch
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace

pytestmark = pytest.mark.slow


def test_every_pull_is_one_version_and_no_version_goes_back() -> None:
    """Each of three workers looks at two million equal numbers at every pull, while the others push."""
    cycles = 100
    result = launch(partial(functions.move_together, cycles=cycles), workers=3, policy="asp", lr_scaling="none")
    final = result.model_state["weight"]
    assert final.min() == final.max() == result.summary.updates == 3 * cycles


@pytest.mark.parametrize(
    "policy",
    ["buffered:size=3", "elastic-bsp:lookahead=4,inside=gather", "backup:k=2,late=pull"],
)
def test_the_parameters_are_the_sum_of_the_gradients_that_the_trace_says_were_applied(
    policy: str, tmp_path: Path
) -> None:
    """A gradient that its worker overwrote before its fate would be missing, or there twice."""
    run = tmp_path / "run"
    result = launch(
        functions.hand_in_distinct,
        workers=2,
        policy=policy,
        lr_scaling="none",
        run_dir=run,
        speed="constant:seconds=0.002",
        slowdown={1: 3.0},
    )
    expected = torch.zeros_like(result.model_state["gradients"])
    samples: dict[Gradient, int] = {}
    trace = Trace(run / "trace.jsonl")
    for record in trace:
        if isinstance(record.event, GradientArrived):
            samples[record.event.gradient] = record.event.samples
        for command in record.commands:
            if isinstance(command, ApplyUpdate):
                total = sum(samples[each] for each in command.gradients)
                weights = command.weights or (1.0,) * len(command.gradients)
                for each, weight in zip(command.gradients, weights, strict=True):
                    value = each.worker * 100 + each.clock
                    expected[each.worker, each.clock] -= weight * value * samples[each] / total
    torch.testing.assert_close(result.model_state["gradients"], expected)
    assert torch.count_nonzero(expected) == result.summary.applied > functions.PUSHES
    assert len(samples) == result.summary.pushes == 2 * (functions.PUSHES - 1)
    assert first_difference(trace) is None
