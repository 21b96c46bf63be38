"""Takes the picture of the live page that the documents show: trains for real, watches it, and opens that in chromium.

python benchmarks/watch_picture.py    # half a minute; writes docs/images/watch.png
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import open_browser  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "watch.png"
TRAINING = ("train", "digits", "--workers", "4", "--speed", "constant:seconds=0.02", "--slow", "3=4", "--policy", "bsp")
WIDTH, HEIGHT, SECONDS = 1100, 1180, 15


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paceline", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def main() -> None:
    with TemporaryDirectory() as directory, open_browser(Path(directory) / "profile") as browser:
        below = Path(directory) / "runs"
        below.mkdir()
        run = started(*TRAINING, "--epochs", 100_000, "--evaluate-every", 720, "--out", below, "--no-gantt")
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
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.run("document.documentElement.style.overflow = 'hidden'")
            browser.settle()
            assert browser.driver.save_screenshot(str(PICTURE))
        finally:
            for process in (run, server):
                process.kill()
                process.wait()
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
