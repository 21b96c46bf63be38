"""The live page in a real browser: it follows a real run, its buttons do what they say, and it survives both sides."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from browser import Browser, open_browser
from report_runs import EVENTFUL, EVIL, Growing, simulated_run
from selenium.webdriver.common.by import By
from test_report_page import COLOURS, GANTT, tip_at

from paceline.dashboard.serving import Watched, watched
from paceline.experiment.run_status import RunReader
from paceline.report.followed_page import address_of

pytestmark = pytest.mark.slow

UNREACHED = "net::ERR_"  # what a browser says of a server that is not there
GROUP = ("--workers", "2..3", "--speed", "constant:seconds=0.02", "--slow", "1=3", "--policy", "bsp")
TRAINING = (
    "train",
    "digits",
    *GROUP,
    "--epochs",
    100_000,
    "--checkpoint-every",
    "1s",
    "--evaluate-every",
    1000,
    "--no-gantt",
)
ANSWER = "document.querySelector('[data-answer]').textContent"
WORKERS = "[...document.querySelectorAll('.now tbody th')].map((head) => head.textContent).join()"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Of a run that has ended, and one that goes on and just now does nothing; both have names that mean harm."""
    below = tmp_path_factory.mktemp("runs")
    ended = simulated_run(below / f"ended {EVIL}"[:-1], "bsp", EVENTFUL, ("accuracy", EVIL))
    growing = Growing(ended, below / f"mine {EVIL}"[:-1])
    growing.write(0.5)
    found = watched(below, "127.0.0.1", 0, price=None, steers=True)
    thread = threading.Thread(target=found.serve)
    thread.start()
    yield found
    found.server.should_exit = True
    thread.join()
    growing.end()


def page_of(server: Watched, name: str) -> str:
    origin, _, token = server.address.partition("/?token=")
    return origin + address_of(f"{name} {EVIL}"[:-1], token)


def test_it_draws_tells_reasons_and_runs_nothing_that_it_was_fed(browser: Browser, server: Watched) -> None:
    browser.look()
    browser.open(page_of(server, "mine"))
    browser.settle()
    colours = browser.run(COLOURS)
    assert colours["#0b8a66"] > 2_000 and colours["#eb9f1e"] > 2_000
    assert browser.run("return document.querySelectorAll('path.curve').length") >= 4
    assert browser.run(f"return {GANTT}.from") > 0, "the latest is what one wants to see"
    browser.driver.find_element(By.XPATH, "//button[.='whole run']").click()
    wait = tip_at(browser, 0, "(row.pushes[1] + row.ends[1]) / 2")
    assert "worker 0 waits" in wait and "the round still needs worker" in wait and "until worker 2 pushed" in wait
    messages = "Number(document.body.dataset.messages)"
    seen = browser.run(f"return {messages}")
    browser.until(f"return {messages} > {seen + 1}")
    told = browser.driver.find_element(By.CSS_SELECTOR, "[data-chart=gantt] .tip").text
    assert told == wait, "it stays there while the page goes on"
    assert EVIL[:-1] in browser.run("return document.querySelector('h1').textContent")
    browser.run(
        "const note = document.createElement('p'); note.innerHTML = arguments[0]; document.body.append(note)", EVIL
    )
    assert browser.run("return window.hacked") is None and "Content Security Policy" in "".join(browser.console())


def test_what_one_is_at_stays_as_it_is(browser: Browser, server: Watched) -> None:
    """Every second the words of the page are new: not those that somebody marks, and no place that was scrolled to."""
    browser.look()
    browser.open(page_of(server, "mine"))
    field = browser.driver.find_element(By.NAME, "policy")
    field.clear()
    field.send_keys("my own")
    browser.run("document.querySelector('[data-evict]').focus()")
    seen = browser.run("return Number(document.body.dataset.messages)")
    browser.until(f"return Number(document.body.dataset.messages) > {seen + 1}")
    assert field.get_attribute("value") == "my own"
    assert browser.run("return document.activeElement.dataset.evict") == "0"


def test_what_nobody_sees_is_not_drawn(browser: Browser, server: Watched) -> None:
    browser.look()
    browser.open(page_of(server, "mine"))
    turn = "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true });"
    turn += "document.dispatchEvent(new Event('visibilitychange'))"
    browser.run(turn, True)
    browser.run("delete document.body.dataset.charts")
    seen = browser.run("return Number(document.body.dataset.messages)")
    browser.until(f"return Number(document.body.dataset.messages) > {seen + 1}")
    assert browser.run("return document.body.dataset.charts") is None
    browser.run(turn, False)
    assert browser.run("return document.body.dataset.charts") == "drawn"


@pytest.mark.parametrize("width", [375, 1600])
def test_it_fits(width: int, browser: Browser, server: Watched) -> None:
    for dark in (False, True):
        browser.look(width, dark=dark)
        for name in ("list", "mine", "ended"):
            if name == "list":
                browser.driver.get(server.address)
                browser.until("return document.querySelectorAll('.runs tbody tr').length === 2")
            else:
                browser.open(page_of(server, name))
            browser.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
            browser.settle()
            wide = browser.run("return document.documentElement.scrollWidth")
            assert wide <= width, f"something is {wide} pixels wide"
            inner = browser.run("return [...document.querySelectorAll('.now, .runs')].map((t) => t.scrollWidth)")
            assert all(size <= width for size in inner), "nobody drags tables to see their buttons"
            background = browser.run("return getComputedStyle(document.body).backgroundColor")
            assert background == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
            assert browser.console() == []
            browser.keep(f"watch-{name}-{width}-{'dark' if dark else 'light'}")


def test_without_the_token(browser: Browser, server: Watched) -> None:
    for address in (server.address.partition("?")[0], server.address[:-1], page_of(server, "mine").partition("?")[0]):
        browser.driver.get(address)
        said = browser.run("return document.body.innerText")
        assert said.strip() == "open the address that `paceline watch` printed: it has the token that is needed here"
    assert all("403" in message for message in browser.console())


class Sides:
    """A real run and a real server, each a process that may be killed."""

    def __init__(self, below: Path, started: ExitStack) -> None:
        self._below, self._started = below, started
        self.address = ""

    def _start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "paceline", *map(str, arguments)]
        with (self._below.parent / "stderr").open("a") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._started.callback(_end, process)
        return process

    def train(self, *arguments: object) -> subprocess.Popen[str]:
        return self._start(*arguments)

    def watch(self, port: int = 0) -> subprocess.Popen[str]:
        process = self._start("watch", self._below, "--port", port)
        assert process.stdout is not None
        self.address = process.stdout.readline().split()[-1]
        return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def press(browser: Browser, name: str, *, sure: bool | None = None) -> None:
    """`sure`: what is said when it asks back; None: it does not."""
    browser.driver.find_element(By.XPATH, f"//button[.='{name}']").click()
    if sure is not None:
        alert = browser.driver.switch_to.alert
        alert.accept() if sure else alert.dismiss()


def write(browser: Browser, name: str, text: object) -> None:
    field = browser.driver.find_element(By.NAME, name)
    field.clear()
    field.send_keys(str(text))


def says(browser: Browser, said: str, **given: str) -> None:
    browser.until(f"return {ANSWER}.includes({said!r})", **given)


def makes_updates(run: Path, seconds: float = 60.0) -> None:
    """Until it does: a run that was resumed goes on where a checkpoint is, once its workers are there."""
    end, before = time.monotonic() + seconds, math.inf
    while (updates := RunReader(run).look().updates) <= before:
        assert time.monotonic() < end, f"{run}: still at {updates} updates"
        before = updates
        time.sleep(0.1)


def is_in_state(browser: Browser, state: str) -> None:
    browser.until(f"return document.querySelector('h1 .state')?.textContent === '{state}'", expected=UNREACHED)
    shown = browser.run("return !document.querySelector('[data-controls]').hidden")
    assert shown == (state in ("running", "starting"))


def test_a_real_run_is_followed_and_steered(browser: Browser, tmp_path: Path) -> None:
    below = tmp_path / "runs"
    below.mkdir()
    with ExitStack() as started:
        sides = Sides(below, started)
        run, server = sides.train(*TRAINING, "--out", below), sides.watch()
        browser.look()
        browser.driver.get(sides.address)
        browser.until("return document.querySelector('.runs .state.running')")
        browser.driver.find_element(By.CSS_SELECTOR, ".runs a").click()
        browser.until("return document.body.dataset.charts === 'drawn'")
        is_in_state(browser, "running")
        directory = next(below.glob("2*"))

        write(browser, "workers", 3)
        press(browser, "scale")
        says(browser, "3 workers; a new one needs a few seconds to start")
        browser.until(f"return {WORKERS} === '0,1,2'")
        write(browser, "workers", 9)
        press(browser, "scale")
        says(browser, "9 workers: this run may have from 2 to 3", expected="409")
        browser.console()
        assert browser.run("return document.querySelector('[data-answer]').matches('.refused')")

        write(browser, "policy", "ssp:staleness=2")
        press(browser, "switch")
        says(browser, "ssp:staleness=2 takes over from bsp")
        browser.until(
            "return document.querySelector('[data-part=about]').textContent.startsWith('ssp:staleness=2 (began')"
        )

        press(browser, "evict", sure=False)
        assert "takes over" in browser.run(f"return {ANSWER}")
        press(browser, "evict", sure=True)
        says(browser, "worker 0 is sent away, and what it was at is for others; 2 workers go on")
        browser.until(f"return {WORKERS} === '1,2'")

        browser.keep("watch-real-1600-light")
        browser.run(f"window.theSame = {GANTT}")
        os.kill(run.pid, signal.SIGKILL)
        is_in_state(browser, "killed")
        run = sides.train("train", "--resume", directory, "--no-gantt")
        is_in_state(browser, "running")

        os.kill(server.pid, signal.SIGKILL)
        note = "document.querySelector('[data-connection]')"
        browser.until(f"return {note}.textContent.includes('The connection is lost')", expected=UNREACHED)
        address = sides.address
        server = sides.watch(int(address.split(":")[2].split("/")[0]))
        assert sides.address == address, "the same token"
        browser.until(f"return {note}.hidden", expected=UNREACHED)
        assert all(UNREACHED in message for message in browser.console())
        assert browser.run(f"return {GANTT}.from > 0 && {GANTT}.to === {GANTT}.total"), "the latest, as before"
        assert browser.run(f"return {GANTT} === window.theSame"), "one chart for all that was told of the run"

        makes_updates(directory)
        press(browser, "stop", sure=False)
        press(browser, "stop", sure=True)
        says(
            browser,
            "it stops: every worker pushes once more, and a checkpoint is written. Go on: paceline train --resume",
        )
        is_in_state(browser, "stopped")
        assert "it stops" in browser.run(f"return {ANSWER}") and browser.console() == []
        assert run.wait(60) == 130

        server.send_signal(signal.SIGINT)
        assert server.wait(10) in (0, 130)
        assert "Traceback" not in (tmp_path / "stderr").read_text()
