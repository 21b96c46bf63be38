"""Which runs a real Ray cluster holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest

PROGRAM = """
import json, ray
import paceline
from paceline.recording.observer import Observer
from paceline.runtimes.ray_cluster.listing import ClusterReader
from training_functions import learn

class Looks(Observer):
    found = None
    def measured(self, measurement):
        if Looks.found is None:
            with ClusterReader("auto") as reader:
                Looks.found = [run.__class__ and (run.name, run.workers, run.servers, run.nodes) for run in reader.look().runs]

if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error")
    paceline.launch(learn, workers=2, cluster=paceline.RayCluster(servers=2), observers=[Looks()])
    with ClusterReader("auto") as reader:
        print(json.dumps([Looks.found, len(reader.look().runs)]))
"""
