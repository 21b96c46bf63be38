"""The report in a real browser: it opens, draws, tells reasons, fits any screen, and runs nothing that it was fed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, open_browser
from report_runs import EVENTFUL, EVIL, simulated_run
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from paceline.experiment.run_report import read_run, write_report
from paceline.experiment.simulation import Simulation

pytestmark = pytest.mark.slow

GANTT = "document.querySelector('[data-chart=gantt]').gantt"
COLOURS = """
const canvas = document.querySelector('canvas'), pen = canvas.getContext('2d');
const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data, found = {};
for (let i = 0; i < pixels.length; i += 4) {
  const name = `#${[0, 1, 2].map((k) => pixels[i + k].toString(16).padStart(2, '0')).join('')}`;
  found[name] = (found[name] || 0) + 1;
}
return found;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one run in which much happens, with names that mean harm."""
    run = simulated_run(tmp_path_factory.mktemp("runs") / EVIL, "bsp", EVENTFUL, ("accuracy", EVIL, "</script>"))
    write_report([read_run(run, 2.5)], run / "report.html")
    return run / "report.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of several runs."""
    below = tmp_path_factory.mktemp("several")
    group = Simulation(intervals=(1.0, 1.0, 1.0, 4.0), duration=100, jitter=0.05)
    runs = [simulated_run(below / name, name, group) for name in ("bsp", "elastic-bsp", "dbw:blind=true")]
    write_report([read_run(run) for run in runs], below / "report.html")
    return below / "report.html"


def tip_at(browser: Browser, worker: int, moment: str) -> str:
    """What the Gantt chart tells there. `moment`: in ticks, an expression of the worker's row."""
    place = f"const g = {GANTT}, row = g.course.rows[{worker}]; return"
    x = browser.run(f"{place} g.px({moment}) - g.width / 2")
    y = browser.run(f"{place} 30 + {worker} * 32 + 13 - g.height / 2")
    canvas = browser.driver.find_element(By.TAG_NAME, "canvas")
    ActionChains(browser.driver).move_to_element_with_offset(canvas, round(x), round(y)).perform()
    return browser.driver.find_element(By.CSS_SELECTOR, "[data-chart=gantt] .tip").text


def test_it_opens_draws_and_complains_of_nothing(browser: Browser, page: Path) -> None:
    browser.look()
    browser.open(page)
    browser.settle()
    assert browser.console() == []
    drawn = browser.run("return [...document.querySelectorAll('path.curve')].map((path) => path.getAttribute('d'))")
    assert len(drawn) >= 6 and all(len(path) > 40 for path in drawn)
    bars = "return document.querySelectorAll('[data-chart=staleness] rect.s0, [data-chart=leads] rect.s0').length"
    assert browser.run(bars) >= 4
    colours = browser.run(COLOURS)
    assert colours["#0b8a66"] > 5_000 and colours["#eb9f1e"] > 2_000, "worker 2 computes, and others wait for it"


def test_what_it_was_fed_is_text(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    said = browser.run("return document.body.innerText")
    assert said.count(EVIL) >= 4 and "</script>" in said
    assert browser.run("return window.hacked") is None and browser.run("return document.images.length") == 0
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 2'; document.body.append(s)"
    )
    assert browser.run("return window.hacked") is None and "Content Security Policy" in browser.console()[0]


def test_the_reason_of_a_wait_is_under_the_pointer(browser: Browser, page: Path) -> None:
    browser.look()
    browser.open(page)
    browser.run(f"{GANTT}.show(0, {GANTT}.total / 8)")
    wait = tip_at(browser, 0, "(row.pushes[1] + row.ends[1]) / 2")
    assert "worker 0 waits" in wait and "the round still needs worker" in wait and "until worker 2 pushed" in wait
    assert "worker 2 computes for 3.95 s, from 0 s" in tip_at(browser, 2, "row.pushes[0] / 2")
    canvas = browser.driver.find_element(By.TAG_NAME, "canvas")
    browser.run(f"{GANTT}.show(0, {GANTT}.total)")
    said = browser.run(
        f"return {GANTT}.course.marks.map((mark) => {GANTT}.markNear({GANTT}.px(mark[0] / {GANTT}.course.tick)))"
    )
    told = "\n".join(said)
    assert "worker 3 joins" in told and "worker 1 leaves" in told and "elastic-bsp takes over" in told
    canvas.click()
    assert "worker" in browser.driver.find_element(By.CSS_SELECTOR, "[data-chart=gantt] .tip").text
    assert browser.console() == []


def test_it_is_zoomed_and_dragged(browser: Browser, page: Path) -> None:
    browser.look()
    browser.open(page)

    def view() -> tuple[float, float]:
        begin, end = browser.run(f"return [{GANTT}.from, {GANTT}.to]")
        return begin, end

    canvas = browser.driver.find_element(By.TAG_NAME, "canvas")
    whole = view()
    browser.driver.find_element(By.XPATH, "//button[.='zoom in']").click()
    begin, end = view()
    assert end - begin == pytest.approx((whole[1] - whole[0]) / 2)
    ActionChains(browser.driver).move_to_element(canvas).click_and_hold().move_by_offset(200, 0).release().perform()
    assert view()[0] < begin and view()[1] - view()[0] == pytest.approx(end - begin)
    canvas.send_keys(Keys.ARROW_RIGHT, "+")
    assert view()[1] - view()[0] == pytest.approx((end - begin) / 2)
    browser.driver.find_element(By.XPATH, "//button[.='whole run']").click()
    assert view() == whole
    browser.driver.find_element(By.XPATH, "//button[.='samples']").click()
    axis = "return document.querySelector('[data-chart=curves] .panels svg').getAttribute('aria-label')"
    assert browser.run(axis) == "training loss over samples"


@pytest.mark.parametrize("width", [375, 1600])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("which", ["page", "pages"])
def test_it_fits(which: str, width: int, dark: bool, browser: Browser, request: pytest.FixtureRequest) -> None:
    browser.look(width, dark=dark)
    browser.open(request.getfixturevalue(which))
    browser.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    browser.settle()
    wide = browser.run("return document.documentElement.scrollWidth")
    assert wide <= width, f"something is {wide} pixels wide"
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    colours = browser.run(COLOURS)
    assert colours["#1f9e78" if dark else "#0b8a66"] > 500
    assert browser.console() == []
    assert browser.keep(f"report-{which}-{width}-{'dark' if dark else 'light'}").stat().st_size > 10_000


def test_several_runs_are_drawn_over_each_other(browser: Browser, pages: Path) -> None:
    browser.look()
    browser.open(pages)
    panels = "return [...document.querySelector('[data-chart=curves]').querySelectorAll('.panels svg')]"
    curves = browser.run(f"{panels}.map((panel) => panel.querySelectorAll('path.curve').length)")
    assert curves[:2] == [3, 3]
    assert browser.run("return document.querySelectorAll('.of-run .bar').length") >= 3
    browser.driver.find_element(By.XPATH, "(//summary[.='More of this run'])[3]").click()
    browser.settle()
    said = browser.run("return document.querySelectorAll('article')[2].innerText")
    assert "How k was chosen" in said
    chosen = browser.run("return document.querySelector('[data-chart=choices] path.curve').getAttribute('d')")
    assert chosen.count("H") > 20 and browser.console() == []


def test_it_can_be_printed(browser: Browser, page: Path) -> None:
    browser.open(page)
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 20_000
