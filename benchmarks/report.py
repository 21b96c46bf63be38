"""How long a report takes and how large it is, for runs of an hour, and how long its Gantt chart takes to be drawn.

python benchmarks/report.py    # two minutes; most of that are the simulations that write the traces
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import open_browser

from paceline.experiment.run_report import read_run, write_report
from paceline.experiment.simulation import Simulation, simulate

HOUR = 3600.0
RUNS = {
    "4 workers, 0.1 to 0.4 s": ("elastic-bsp", Simulation(intervals=(0.1, 0.1, 0.1, 0.4), jitter=0.1, duration=HOUR)),
    "4 workers, 20 to 80 ms": (
        "elastic-bsp",
        Simulation(intervals=(0.02, 0.02, 0.02, 0.08), jitter=0.1, duration=HOUR),
    ),
    "16 workers, 36 ms": ("ssp", Simulation(workers=16, speed="lognormal:seconds=0.036", duration=HOUR)),
}
PAINT = """
const gantt = document.querySelector('[data-chart=gantt]').gantt, began = performance.now();
[gantt.from, gantt.to] = [0, gantt.total / arguments[0]];
for (let i = 0; i < 20; i++) gantt.paint();
return (performance.now() - began) / 20;
"""


def main() -> None:
    print(f"{'an hour of':<26}{'iterations':>12}{'CPU s':>8}{'s':>7}{'MB':>7}{'chart ms':>10}{'zoomed':>8}")
    with TemporaryDirectory() as directory, open_browser(Path(directory) / "profile") as browser:
        browser.look()
        for name, (policy, simulation) in RUNS.items():
            trace, page = Path(directory) / "trace.jsonl", Path(directory) / "report.html"
            simulate(policy, simulation, trace_file=trace)
            began, busy = time.perf_counter(), time.process_time()
            run = read_run(trace)
            write_report([run], page)
            took, busy = time.perf_counter() - began, time.process_time() - busy
            browser.open(page)
            whole, zoomed = browser.run(PAINT, 1), browser.run(PAINT, 1000)
            size = page.stat().st_size / 1e6
            print(
                f"{name:<26}{run.summary.pushes:>12,}{busy:>8.1f}{took:>7.1f}{size:>7.2f}{whole:>10.1f}{zoomed:>8.1f}"
            )


if __name__ == "__main__":
    main()
