"""Where the time of a run goes: parts that add up, and what limits it in a sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from paceline.cli import main
from paceline.experiment.profile import Share, advice_on, limit_of, share_of
from paceline.training.stopwatch import Stamps

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def train(worker):
    torch.set_num_threads(1)
    model = nn.Linear(4, 1)
    optimizer = worker.optimizer(model, torch.optim.SGD, lr=0.01)
    for (x,) in worker.batches(TensorDataset(torch.ones(64, 4)), batch_size=8):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step(loss)
"""


def share(worker: int, *, compute: float, data: float = 0.0, push: float = 0.0, wait: float = 0.0) -> Share:
    return Share(worker, compute + data + push + wait, compute, data, push, wait, 0.0, steps=10)


def test_the_parts_of_a_workers_time_add_up() -> None:
    stamps = Stamps(3, began=10.0, ended=20.0, data=1.0, work=0.5, steps=[(11.0, 13.0, 0.25), (15.0, 16.0, 0.0)])
    found = share_of(stamps, [(11.5, 12.5), (15.25, 15.5)])
    assert found == Share(3, 10.0, 10.0 - 1.0 - 0.5 - 2.75, 1.0, 0.25 + 0.25, 1.0 + 0.25 + 0.5, 0.5 + 0.5, 2)
    parts = found.compute + found.data + found.push + found.wait + found.pull
    assert parts == found.elapsed and found.pace == (found.compute + found.data) / 2


def test_a_step_that_was_dropped_on_the_way_has_no_wait_and_clocks_may_be_read_apart() -> None:
    stamps = Stamps(0, began=0.0, ended=10.0, steps=[(1.0, 2.0, 0.0), (3.0, 4.0, 0.0), (5.0, 6.0, 0.0)])
    found = share_of(stamps, [(3.25, 3.5), (4.99, 6.01)])
    assert (found.push, found.wait, found.pull) == (1.0 + 0.25, 0.25 + 1.0, 0.5)
    assert share_of(stamps, []).push == 3.0


def test_what_limits_a_run_is_named() -> None:
    def limit(*shares: Share) -> tuple[str, str]:
        return limit_of(shares)

    assert limit(share(0, compute=9.0, wait=1.0)) == ("computing: 90% of the workers' time", "compute")
    assert limit(share(0, compute=2.0, data=8.0))[0].startswith("data loading: 80% of the workers' time")
    assert limit(share(0, compute=2.0, push=8.0))[0].startswith("the server: 80% of the workers' time")
    waits = share(0, compute=2.0, wait=8.0), share(1, compute=10.0)
    assert limit(*waits)[0].startswith("waiting for worker 1: it needs 1e+03 ms for a step, the others 200 ms, and 40%")
    assert limit(share(0, compute=5.0, wait=5.0), share(1, compute=5.0, wait=5.0))[0].startswith(
        "waiting for each other"
    )


def test_what_would_help_is_said() -> None:
    nowhere = Path("nowhere")
    loading = advice_on("data", [share(0, compute=2.0, data=8.0)], nowhere, "bsp")
    assert "800 ms to load and 200 ms to compute" in loading and "num_workers=4" in loading
    loaded = share(0, compute=2.0, data=8.0)
    for loaders in (1, 64):
        said = advice_on("data", [msgspec.structs.replace(loaded, loaders=loaders)], nowhere, "bsp")
        assert f"though {loaders} loader processes of every worker prepare it ahead" in said
    assert "more of them help only if they wait" in said
    assert "larger batches" in advice_on("server", [], nowhere, "bsp")
    assert "faster device" in advice_on("compute", [], nowhere, "bsp")


@pytest.mark.slow
def test_a_script_is_measured_in_a_short_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    asked = ["profile", str(tmp_path / "own.py"), "--workers", "2", "--seconds", "0.5", "--out", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", ["paceline", *asked, "--intervals", "0.001,0.1", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    for one in found["shares"]:
        assert sum(one[part] for part in ("compute", "data", "push", "wait", "pull")) == pytest.approx(one["elapsed"])
        assert min(one[part] for part in ("compute", "data", "push", "wait", "pull")) >= 0
        assert one["elapsed"] > 0.5 and one["steps"] >= 1
    assert [one["worker"] for one in found["shares"]] == [0, 1] and found["limit"] and found["advice"]
    assert (Path(found["run_dir"]) / "trace.jsonl").exists()


def test_impossible_seconds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["paceline", "profile", str(tmp_path / "own.py"), "--seconds", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "--seconds 0: must be above 0" in capsys.readouterr().err
