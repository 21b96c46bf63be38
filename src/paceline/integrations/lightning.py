"""A LightningModule on paceline: a strategy for the Trainer inside `train(worker)`, and validation beside training.

The Trainer of every worker runs the module's own loop. What `configure_optimizers` returns is made again on the server,
and the training loader is shared by the group. Validation belongs to `launch(..., evaluate=Validation(...))`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor

from paceline.core.errors import ConfigurationError
from paceline.integrations.pushing import PushingOptimizer
from paceline.training.worker import Worker

QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_val_batches": 0,
}


def trainer(worker: Worker, **options: Any) -> Trainer:
    """A Trainer of one worker, which writes nothing by itself; `options` are those of Lightning's Trainer."""
    return Trainer(strategy=PacelineStrategy(worker), max_epochs=worker.epochs, **{**QUIET, **options})


class PacelineStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """Trainer(strategy=PacelineStrategy(worker), limit_val_batches=0): `optimizer.step` is a push and a pull."""

    strategy_name = "paceline"
    optimizers: Any  # these two are Lightning's
    lr_scheduler_configs: Any

    def __init__(self, worker: Worker) -> None:
        super().__init__(device=worker.device)
        self._worker = worker
        self._trainer: Trainer | None = None
        self.global_rank = self.local_rank = rank_zero_only.rank = worker.index  # what all would say, one says

    @property
    def is_global_zero(self) -> bool:
        return self._worker.index == 0

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        if trainer.limit_val_batches and trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined():
            raise ConfigurationError(
                "every worker would validate by itself: give Trainer(limit_val_batches=0), and launch(..., evaluate="
                "paceline.integrations.lightning.Validation(make_module, loader)), which runs beside training"
            )
        if len(self.optimizers) != 1 or len(self.lr_scheduler_configs) > 1:
            raise ConfigurationError(
                f"{type(self.lightning_module).__name__}.configure_optimizers returns {len(self.optimizers)} optimizers"
                f" and {len(self.lr_scheduler_configs)} schedulers; a run has one optimizer and at most one scheduler"
            )
        self._trainer = trainer

    def process_dataloader(self, dataloader: Any) -> Any:
        """Hand everything over: here the optimizer, the schedule and the data are known."""
        trainer = self._trainer
        if trainer is None or trainer.state.fn != TrainerFn.FITTING:
            return dataloader
        (made,) = self.optimizers
        if isinstance(made, PushingOptimizer):
            raise ConfigurationError("a run has one training loader; combine the data sets into one")
        things, every = [self.lightning_module, made, dataloader], None
        for schedule in self.lr_scheduler_configs:
            things.append(schedule.scheduler)
            every = _samples_between(schedule, dataloader, trainer.accumulate_grad_batches)
        _, remote, batches, *_ = self._worker.prepare(*things, scheduler_every=every)
        self.optimizers = [PushingOptimizer(made, remote, self._worker)]
        self.lr_scheduler_configs = []  # the server steps it
        return batches


def _samples_between(schedule: Any, loader: Any, accumulated: int) -> str | int:
    """How often Lightning would step it."""
    if schedule.interval == "step":
        return int(schedule.frequency * accumulated * loader.batch_size)
    if schedule.frequency != 1:
        raise ConfigurationError(f"a scheduler that steps every {schedule.frequency} epochs cannot be taken over")
    return "epoch"


class Validation:
    """`evaluate` for `launch`: the figures that the module's validation_step logs, by their names."""

    def __init__(self, make_module: Callable[[], LightningModule], loader: Any) -> None:
        """`make_module`: the class of the module, or whatever else makes one; `loader`: what is validated on."""
        self._make_module = make_module
        self._loader = loader

    def __call__(self, state: dict[str, Tensor]) -> dict[str, float]:
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # or every Trainer introduces itself
        module = self._make_module()
        module.load_state_dict(state)
        judge = Trainer(accelerator="cpu", devices=1, **{**QUIET, "limit_val_batches": 1.0})
        (figures,) = judge.validate(module, self._loader, verbose=False)
        return {name: float(figure) for name, figure in figures.items()}
