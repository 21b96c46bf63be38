"""Takes the pictures of reports that the documents show: trains for real, makes reports, and opens them in chromium.

python benchmarks/report_pictures.py    # about a minute; writes docs/images/
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, open_browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"
TRAINING = ("train", "digits", "--workers", 4, "--speed", "constant:seconds=0.02", "--slow", "3=4")
POLICIES = ("bsp", "ssp", "dssp", "dbw", "elastic-bsp", "asp")
IDEA = """
const hide = (element) => { element.style.display = 'none'; };
const away = 'main > section, main > header, footer, .story, .note, .tiles, .controls, .legend, article header > p, h3';
document.querySelectorAll(away).forEach(hide);
for (const details of document.querySelectorAll('details')) {
  details.open = true;
  for (const child of details.children) if (!child.querySelector('[data-chart=gantt]')) hide(child);
}
for (const headline of document.querySelectorAll('.headline')) headline.style.fontSize = '1.1rem';
for (const article of document.querySelectorAll('article')) {
  article.style.borderTop = '0';
  article.style.marginTop = '0';
}
document.querySelectorAll('section, details').forEach((element) => { element.style.margin = '0'; });
"""
NAMES = """
const names = ['BSP: everybody waits for the slowest', 'ElasticBSP: barriers where the workers meet anyway'];
document.querySelectorAll('article h2').forEach((title, i) => { title.textContent = names[i]; });
for (const { gantt } of document.querySelectorAll('[data-chart=gantt]')) {
  gantt.show(0.1 / gantt.course.tick, 1.1 / gantt.course.tick);
}
"""


def paceline(*arguments: object) -> None:
    subprocess.run([ROOT / ".venv" / "bin" / "paceline", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def shoot(browser: Browser, width: int, height: int, path: Path) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.run("document.documentElement.style.overflow = 'hidden'")
    browser.settle()
    browser.settle()
    assert browser.driver.save_screenshot(str(path))
    print(path.relative_to(ROOT))


def main() -> None:
    with TemporaryDirectory() as directory:
        below = Path(directory)
        for policy in POLICIES:
            paceline(*TRAINING, "--policy", policy, "--evaluate-every", 360, "--out", below / policy, "--no-gantt")
        runs = {policy: next((below / policy).iterdir()) for policy in POLICIES}
        paceline("report", *runs.values(), "-o", below / "all.html")
        paceline("report", runs["bsp"], runs["elastic-bsp"], "-o", below / "two.html")
        with open_browser(below / "profile") as browser:
            browser.look(1100)
            browser.open(below / "all.html")
            shoot(browser, 1100, 1240, IMAGES / "report-compared.png")
            browser.open(runs["bsp"] / "report.html")
            shoot(browser, 1100, 1500, IMAGES / "report.png")
            browser.open(below / "two.html")
            browser.run(IDEA)
            browser.settle()
            browser.run(NAMES)
            shoot(browser, 1100, 730, IMAGES / "idea.png")


if __name__ == "__main__":
    main()
