"""What a live page is told of a run, piece by piece, is what a report says of it; and it is told whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from course_reader import Reader
from report_runs import EVENTFUL, Growing, simulated_run

from paceline.dashboard.broadcast import BEHIND, UNEXPECTED, Broadcast
from paceline.dashboard.run_feed import RunFeed
from paceline.dashboard.shelf import Shelf, ShelfFeed
from paceline.experiment.run_report import read_run
from paceline.report.sections import charts_of, words_of

FORESEEN = ("story", "advice")  # what whatif says is asked for now and then, and not of the same beginning


class Page:
    """What a browser makes of the messages, as `live.js` does."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}
        self.course = Reader()
        self.rest: dict[str, Any] = {}
        self.wholes = 0

    def take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            return
        if message.get("whole"):
            self.words, self.course = {}, Reader()
            self.wholes += 1
        self.words = {part: said for part, said in {**self.words, **message.get("words", {})}.items() if said}
        if "course" in message:
            self.course.take(message["course"])
        self.rest |= {name: message[name] for name in ("charts", "controls", "curves") if name in message}
        self.rest["problem"] = message.get("problem", "")

    def shows(self, without: tuple[str, ...] = ()) -> Any:
        words = {part: said for part, said in self.words.items() if part not in without}
        return words, vars(self.course), self.rest


def page_of(directory: Path) -> Page:
    """Of somebody who comes only now."""
    feed, page = RunFeed(directory), Page()
    feed.look()
    page.take(feed.whole())
    return page


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    run = Growing(simulated_run(tmp_path / "whole", "bsp", EVENTFUL), tmp_path / "mine")
    yield run
    with contextlib.suppress(OSError):  # the test has ended it
        run.end()


@pytest.mark.slow
def test_pieces_come_to_what_a_report_says(growing: Growing) -> None:
    feed, page = RunFeed(growing.directory), Page()
    for eighth in range(9):
        growing.write(eighth / 8)
        page.take(feed.look())
        late = page_of(growing.directory)
        assert page.shows(FORESEEN) == late.shows(FORESEEN)
    assert page.wholes == 2, "when it had not begun, when it had, and all else came in pieces"
    assert page.rest["controls"] == {"workers": 3, "policy": "elastic-bsp"}
    growing.end()
    page.take(feed.look())
    report = read_run(growing.directory)
    now = page.words.pop("now")
    assert "computes" in now and "<button" not in now, "how it was at its end"
    assert page.words == words_of(report) and page.rest["charts"] == sorted(charts_of(report))
    assert page.wholes == 3 and page.rest["controls"] is None
    assert page.rest["curves"] == report.curves
    assert feed.look() is None, "of a run that has ended there is nothing new"


def test_advice_comes_when_it_is_found(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds; nobody waits for it."""
    monkeypatch.setattr("paceline.dashboard.run_feed.FIRST_ADVICE", 100)
    growing.write(0.6)
    feed, page = RunFeed(growing.directory), Page()
    while "advice" not in page.words:
        page.take(feed.look())
    assert "simulated again" in page.words["story"] and page.wholes == 1


def test_pieces_are_small(growing: Growing) -> None:
    feed = RunFeed(growing.directory)
    growing.write(0.9)
    whole, sizes = feed.look(), []
    for step in range(1, 21):
        growing.write(0.9 + step / 400)
        news = feed.look()
        assert news is not None and "whole" not in news
        sizes.append(len(msgspec.json.encode(news["course"])))
    assert whole is not None and max(sizes) < len(msgspec.json.encode(whole["course"])) / 4


def test_a_run_goes_back_to_its_checkpoint(growing: Growing) -> None:
    """Killed, and resumed with shorter files: the page shows what is there, and nothing of what was lost."""
    feed, page = RunFeed(growing.directory), Page()
    growing.write(0.8)
    page.take(feed.look())
    growing.end()
    page.take(feed.look())
    assert ">killed<" in page.words["name"] and page.rest["controls"] is None
    growing.go_on()
    growing.write(0.5)
    page.take(feed.look())
    assert ">running<" in page.words["name"]
    assert page.shows(FORESEEN) == page_of(growing.directory).shows(FORESEEN)
    growing.write(0.3)  # at once again, between two looks
    page.take(feed.look())
    assert page.shows(FORESEEN) == page_of(growing.directory).shows(FORESEEN)


def test_before_it_begins(growing: Growing) -> None:
    feed, page = RunFeed(growing.directory), Page()
    page.take(feed.look())
    assert "has not begun" in page.words["notes"] and page.rest["charts"] == []
    growing.write(0.2)
    page.take(feed.look())
    assert "notes" not in page.words and "gantt" in page.rest["charts"]


def test_a_damaged_trace_is_shown_as_far_as_it_goes(growing: Growing) -> None:
    growing.write(0.5)
    with (growing.directory / "trace.jsonl").open("ab") as file:
        file.write(b'{"now": nonsense}\n{"now": more}\n')
    page = page_of(growing.directory)
    assert "not a whole record" in page.words["notes"] and "gantt" in page.rest["charts"]


def test_a_run_that_is_taken_away_and_comes_back(growing: Growing, tmp_path: Path) -> None:
    feed, page = RunFeed(growing.directory), Page()
    growing.write(0.5)
    page.take(feed.look())
    growing.directory.rename(tmp_path / "elsewhere")
    page.take(feed.look())
    assert "mine" in page.rest["problem"] and "gantt" in page.rest["charts"], "what was there is still shown"
    (tmp_path / "elsewhere").rename(growing.directory)
    page.take(feed.look())
    assert page.rest["problem"] == ""
    assert page.shows(FORESEEN) == page_of(growing.directory).shows(FORESEEN)


def test_no_buttons_for_who_may_only_look(growing: Growing) -> None:
    growing.write(0.5)
    feed = RunFeed(growing.directory, steers=False)
    whole = feed.look()
    assert whole is not None and whole["controls"] is None and "<button" not in whole["words"]["now"]
    steering = RunFeed(growing.directory).look()
    assert steering is not None and 'data-evict="3"' in steering["words"]["now"]


def test_losses_in_money(growing: Growing) -> None:
    growing.write(0.5)
    whole = RunFeed(growing.directory, price=3600.0).look()
    assert whole is not None and "worth" in whole["words"]["story"]


def test_the_list_of_runs_is_told_when_it_changes(growing: Growing, tmp_path: Path) -> None:
    growing.write(0.5)
    feed = ShelfFeed(Shelf(tmp_path), "secret")
    first = feed.look()
    assert first is not None and feed.look() is None
    words = first["words"]["runs"]
    assert words.index("/runs/mine?token=secret") < words.index("/runs/whole?token=secret"), "who goes on stands first"
    growing.end()
    then = feed.look()
    assert then is not None and ">killed<" in then["words"]["runs"]


# -- to several who watch --


class Counter:
    """A source that counts how often it was looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.broken = False
        self.may_look = threading.Event()
        self.may_look.set()

    def look(self) -> dict[str, Any]:
        self.may_look.wait()
        if self.broken:
            raise KeyError("broken")
        self.looks += 1
        return {"new": self.looks}

    def whole(self) -> dict[str, Any]:
        return {"all": self.looks}


def told(line: bytes) -> Any:
    return msgspec.json.decode(line.removeprefix(b"data: "))


def test_all_who_watch_are_told_the_same_and_nobody_looks_for_nobody() -> None:
    async def scene() -> None:
        source = Counter()
        broadcast = Broadcast(source, every=0.01)
        await asyncio.sleep(0.05)
        assert source.looks == 0
        one, other = broadcast.watch(), broadcast.watch()
        assert (await anext(one)).startswith(b"retry: ")
        begun = told(await anext(one))["all"]
        assert [told(await anext(one))["new"] for _ in range(3)] == [begun + 1, begun + 2, begun + 3]
        await anext(other)
        entered = told(await anext(other))["all"]
        assert told(await anext(other))["new"] == entered + 1, "from there on, and nothing twice"
        await one.aclose()
        await other.aclose()
        looks = source.looks
        await asyncio.sleep(0.05)
        assert source.looks <= looks + 1

    asyncio.run(scene())


def test_who_cannot_keep_up_is_told_everything_again() -> None:
    async def scene() -> None:
        source = Counter()
        broadcast = Broadcast(source, every=0.001)
        slow = broadcast.watch()
        await anext(slow)
        begun = told(await anext(slow))["all"]
        while broadcast.is_watched:  # until so many messages wait for it that it is given up
            await asyncio.sleep(0.001)
        again = told(await anext(slow))
        assert again["all"] == begun + BEHIND + 2, "who does not listen is not looked for"
        assert told(await anext(slow))["new"] == again["all"] + 1
        await slow.aclose()

    asyncio.run(scene())


def test_who_waits_long_for_the_first_look_hears_that_somebody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a page takes the connection for lost, and asks again and again for what takes long."""
    monkeypatch.setattr("paceline.dashboard.broadcast.SIGN_OF_LIFE", 0.001)

    async def scene() -> None:
        source = Counter()
        source.may_look.clear()
        stream = Broadcast(source).watch()
        await anext(stream)
        assert [told(await anext(stream)) for _ in range(3)] == [{}, {}, {}]
        source.may_look.set()
        while not (first := told(await anext(stream))):
            pass
        assert first["all"] == source.looks == 1
        await stream.aclose()

    asyncio.run(scene())


def test_a_mistake_of_ours_is_told_and_the_stream_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        source = Counter()
        stream = Broadcast(source, every=0.001).watch()
        await anext(stream)
        await anext(stream)
        source.broken = True
        while "problem" not in (said := told(await anext(stream))):
            pass
        assert said == {"problem": UNEXPECTED}
        other = Broadcast(source).watch()
        await anext(other)
        assert told(await anext(other)) == {"problem": UNEXPECTED}
        source.broken = False
        while "new" not in told(await anext(stream)):
            pass
        await stream.aclose()
        await other.aclose()

    asyncio.run(scene())
    assert capsys.readouterr().err.count("KeyError: 'broken'") == 2, "once for each that broke, and not every second"
