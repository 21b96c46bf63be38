"""A plain loop on several workers: under BSP it learns what one process learns with the batches concatenated."""

from __future__ import annotations

import migrated_loop
import pytest
import torch

from paceline.experiment.training import launch


@pytest.mark.slow
def test_a_converted_loop_under_bsp_equals_the_plain_one_with_the_batches_of_a_round_as_one() -> None:
    result = launch(migrated_loop.train, workers=4, policy="bsp", epochs=migrated_loop.EPOCHS)
    assert result.samples == migrated_loop.EPOCHS * migrated_loop.SAMPLES
    assert result.summary.updates == result.samples // (4 * migrated_loop.BATCH)
    for name, expected in migrated_loop.alone(workers=4).items():
        torch.testing.assert_close(result.model_state[name], expected)
