"""The published experiments, each as one function that runs it and returns a page: what was claimed, what we saw."""

from __future__ import annotations

from typing import NamedTuple

from paceline.experiment.reproduction.asking import Asked, Experiment
from paceline.experiment.reproduction.dbw_static import dbw_static
from paceline.experiment.reproduction.dssp_table import dssp_table
from paceline.experiment.reproduction.elasticbsp_curves import elasticbsp_curves
from paceline.experiment.reproduction.page import Page, index
from paceline.experiment.reproduction.recorded_trace import recorded_trace
from paceline.experiment.reproduction.search_times import search_times


class Entry(NamedTuple):
    run: Experiment
    summary: str
    seeds: int


EXPERIMENTS: dict[str, Entry] = {
    "elasticbsp-table2": Entry(search_times, "search times of the barrier algorithms over n and R", 1),
    "elasticbsp-curves": Entry(elasticbsp_curves, "4 unequal workers: accuracy over time, finishing order", 3),
    "dssp-table1": Entry(dssp_table, "2 mixed GPUs: time to two accuracy levels", 3),
    "dbw-static": Entry(dbw_static, "16 workers: DBW against every static k", 3),
    "trace": Entry(recorded_trace, "all policies on recorded iteration times", 3),
}

__all__ = ["EXPERIMENTS", "Asked", "Entry", "Page", "index"]
