"""What `paceline watch` costs while a long run goes on: seconds until a page shows it, and the share of a core that the
server and the page take from then on.

python benchmarks/watching.py    # two minutes
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, open_browser  # noqa: E402

from paceline.experiment.run_lock import lock  # noqa: E402
from paceline.experiment.simulation import Simulation, simulate  # noqa: E402
from paceline.report.followed_page import address_of  # noqa: E402

RUNS = {  # how many records are written per second while it is watched
    "4 workers, 0.1 to 0.4 s": (
        "elastic-bsp",
        Simulation(intervals=(0.1, 0.1, 0.1, 0.4), jitter=0.1, duration=3600.0),
        30,
    ),
    "16 workers, 36 ms": ("ssp", Simulation(workers=16, speed="lognormal:seconds=0.036", duration=900.0), 420),
}
THERE = 0.9  # of the trace, when it is first looked at
SECONDS = 30.0


@contextmanager
def growing(whole: Path, run: Path, rate: int) -> Iterator[int]:
    """A run that goes on: so many more lines per second. Gives the number of those that are there."""
    lines = whole.read_bytes().splitlines(keepends=True)[:-1]
    there, over = int(THERE * len(lines)), threading.Event()
    run.mkdir()
    held = lock(run)
    with (run / "trace.jsonl").open("wb", buffering=0) as file:
        file.write(b"".join(lines[:there]))

        def write() -> None:
            written = there
            while not over.wait(0.2):
                file.write(b"".join(lines[written : written + rate // 5]))
                written += rate // 5

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield there
        finally:
            over.set()
            thread.join()
            os.close(held)


def busy(process: subprocess.Popen[str]) -> float:
    """Seconds of a core."""
    user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def memory(process: subprocess.Popen[str]) -> float:
    """MB, at most."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def page_busy(browser: Browser) -> float:
    found = browser.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(float(metric["value"]) for metric in found if metric["name"] == "TaskDuration")


def main() -> None:
    heads = f"{'records':>9}{'shown after s':>15}{'CPU s':>8}{'server':>9}{'page':>8}{'MB':>7}"
    print(f"{'':<26}{heads}")
    with TemporaryDirectory() as directory, open_browser(Path(directory) / "profile") as browser:
        browser.look()
        browser.driver.execute_cdp_cmd("Performance.enable", {})
        for number, (name, (policy, simulation, rate)) in enumerate(RUNS.items()):
            whole, below = Path(directory) / "whole.jsonl", Path(directory) / f"runs-{number}"
            below.mkdir()
            simulate(policy, simulation, trace_file=whole)
            command = [sys.executable, "-m", "paceline", "watch", str(below), "--port", "0"]
            with growing(whole, below / "mine", rate) as records:
                server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                try:
                    assert server.stdout is not None
                    origin, _, token = server.stdout.readline().split()[-1].partition("/?token=")
                    began = time.perf_counter()
                    browser.open(origin + address_of("mine", token))
                    shown, first = time.perf_counter() - began, busy(server)
                    before, since, of_page = first, time.perf_counter(), page_busy(browser)
                    time.sleep(SECONDS)
                    took = time.perf_counter() - since
                    server_share, page_share = (busy(server) - before) / took, (page_busy(browser) - of_page) / took
                    print(
                        f"{name:<26}{records:>9,}{shown:>15.1f}{first:>8.1f}{server_share:>9.1%}{page_share:>8.1%}"
                        f"{memory(server):>7.0f}"
                    )
                finally:
                    browser.driver.get("about:blank")
                    server.kill()
                    server.wait()


if __name__ == "__main__":
    main()
