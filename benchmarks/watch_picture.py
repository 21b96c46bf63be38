"""Takes the pictures of a run that goes on that the documents show: the live page, and the table of `paceline status`.

It trains for real, and chromium draws both.

python benchmarks/watch_picture.py    # half a minute; writes docs/images/watch.png and live.png
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import msgspec  # noqa: E402
from browser import Browser, open_browser  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.terminal_theme import MONOKAI  # noqa: E402

from paceline.experiment.run_list import newest_run  # noqa: E402
from paceline.experiment.run_status import RunReader  # noqa: E402
from paceline.report.status import status_view  # noqa: E402

PAGE, TABLE = (ROOT / "docs" / "images" / name for name in ("watch.png", "live.png"))
TRAINING = ("train", "digits", "--workers", "4", "--speed", "constant:seconds=0.02", "--slow", "3=4", "--policy", "bsp")
WIDTH, HEIGHT, SECONDS = 1100, 1180, 15
COLUMNS, TABLE_SIZE = 112, (1010, 300)
TERMINAL = """<!doctype html><meta charset="utf-8"><style>{stylesheet}
body {{ color: {foreground}; background: {background}; margin: 18px 22px; overflow: hidden }}
pre {{ font: 14px/1.35 "DejaVu Sans Mono", monospace; margin: 0 }}</style><body><pre>{code}</pre>"""


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paceline", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def shoot(browser: Browser, width: int, height: int, path: Path) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.run("document.documentElement.style.overflow = 'hidden'")
    browser.settle()
    assert browser.driver.save_screenshot(str(path))
    print(path.relative_to(ROOT))


def table_of(run: Path) -> str:
    """As `paceline status` prints it on a terminal of so many columns."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, force_terminal=True, color_system="truecolor", file=nowhere)
        status = RunReader(run).look()
        console.print(status_view(msgspec.structs.replace(status, run=f"runs/{run.name}"), COLUMNS))
    return console.export_html(theme=MONOKAI, code_format=TERMINAL)


def main() -> None:
    with TemporaryDirectory() as directory, open_browser(Path(directory) / "profile") as browser:
        below = Path(directory) / "runs"
        below.mkdir()
        run = started(*TRAINING, "--epochs", 200, "--evaluate-every", 720, "--out", below, "--no-gantt")
        server = started("watch", below, "--port", 0)
        try:
            assert server.stdout is not None
            browser.look(WIDTH)
            browser.driver.get(server.stdout.readline().split()[-1])
            browser.until("return document.querySelector('.runs .state.running')")
            browser.driver.find_element("css selector", ".runs a").click()
            browser.until("return document.body.dataset.charts === 'drawn'")
            time.sleep(SECONDS)
            browser.until("return document.querySelectorAll('.now .waits').length === 3")
            shoot(browser, WIDTH, HEIGHT, PAGE)
            while (table := table_of(newest_run(below))).count("computes") > 1:
                assert run.poll() is None, "it ended before three of its workers were seen to wait"
            (below / "table.html").write_text(table)
            browser.driver.get((below / "table.html").as_uri())
            shoot(browser, *TABLE_SIZE, TABLE)
        finally:
            for process in (run, server):
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
