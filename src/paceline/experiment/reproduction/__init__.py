"""The published experiments, each as one function that runs it and returns a page: what was claimed, what we saw."""

from __future__ import annotations

from typing import NamedTuple

from paceline.experiment.reproduction.autopilot import autopilot
from paceline.experiment.reproduction.dbw_static import dbw_static
from paceline.experiment.reproduction.dssp_table import dssp_table
from paceline.experiment.reproduction.elasticbsp_curves import elasticbsp_curves
from paceline.experiment.reproduction.optimizers import optimizers
from paceline.experiment.reproduction.page import Page, index
from paceline.experiment.reproduction.recorded_trace import recorded_trace
from paceline.experiment.reproduction.request import Experiment, ExperimentRequest
from paceline.experiment.reproduction.search_times import search_times
from paceline.experiment.reproduction.unseen_groups import unseen_groups
from paceline.experiment.reproduction.unseen_optimizers import unseen_optimizers


class PublishedExperiment(NamedTuple):
    run: Experiment
    summary: str
    seeds: int


EXPERIMENTS: dict[str, PublishedExperiment] = {
    "elasticbsp-table2": PublishedExperiment(search_times, "search times of the barrier algorithms over n and R", 1),
    "elasticbsp-curves": PublishedExperiment(
        elasticbsp_curves, "4 unequal workers: accuracy over time, finishing order", 3
    ),
    "dssp-table1": PublishedExperiment(dssp_table, "2 mixed GPUs: time to two accuracy levels", 3),
    "dbw-static": PublishedExperiment(dbw_static, "16 workers: DBW against every static k", 3),
    "optimizers": PublishedExperiment(
        optimizers, "SGD, momentum and AdamW under every policy, with stale gradients corrected and not", 3
    ),
    "optimizers-unseen": PublishedExperiment(
        unseen_optimizers, "the same with seeds, models, data and groups that the correction was not made with", 3
    ),
    "autopilot": PublishedExperiment(autopilot, "auto against every fixed policy, in groups of all kinds", 12),
    "autopilot-unseen": PublishedExperiment(unseen_groups, "the same in groups that auto was not built with", 6),
    "trace": PublishedExperiment(recorded_trace, "all policies on recorded iteration times", 3),
}

__all__ = ["EXPERIMENTS", "ExperimentRequest", "Page", "PublishedExperiment", "index"]
