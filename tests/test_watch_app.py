"""Who may see and steer runs in a browser, what the buttons ask for, and what is refused, without a browser."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import select
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import pytest
from command_line import Command, command
from prometheus_client.parser import text_string_to_metric_families
from report_runs import EVENTFUL, EVIL, Growing, simulated_run

from paceline.core.errors import ConfigurationError
from paceline.dashboard.access import Access
from paceline.dashboard.app import KEPT, Dashboard
from paceline.dashboard.serving import Watched, watched
from paceline.dashboard.shelf import Shelf
from paceline.dashboard.token import NAME, token_for
from paceline.experiment.run_status import directories, is_run
from paceline.runtimes.serving.control import LONGEST, Answer, Control, Evicted, Refused, Request, Scaled, Stopping

TOKEN = "the-token-of-this-test"
HERE = {"host": "127.0.0.1:7223"}
BEARER = {**HERE, "authorization": f"Bearer {TOKEN}"}
JSON = {**BEARER, "content-type": "application/json", "origin": "http://127.0.0.1:7223"}
GOING_ON, NAMED = "mine", EVIL.replace("/", "") + ' "?#&%'
NEEDED = "open the address that `paceline watch` printed: it has the token that is needed here\n"
ROUTES = ("/", "/events/", f"/runs/{GOING_ON}", f"/events/{GOING_ON}", f"/steer/{GOING_ON}", "/metrics", "/nothing")


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


class Client:
    """Asks an ASGI application as a server would that does no more than to take requests apart."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._app = dashboard.app()
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | list[tuple[str, str]] = BEARER,
        query: str = "",
        body: bytes = b"",
        until: Callable[[bytes], bool] = lambda body: False,
    ) -> Answered:
        """`path`: as the application sees it. `until`: whoever asked goes away when it was told this."""
        return self._loop.run_until_complete(self._ask(method, path, headers, query, body, until))

    async def _ask(
        self, method: str, path: str, headers: Any, query: str, body: bytes, until: Callable[[bytes], bool]
    ) -> Answered:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs],
        }
        begun: dict[str, Any] = {}
        said = bytearray()
        gone = asyncio.Event()
        pieces = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if pieces:
                return pieces.pop(0)
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            begun.update(message)
            said.extend(message.get("body", b""))
            if until(bytes(said)):
                gone.set()

        await asyncio.wait_for(self._app(scope, receive, send), 20)  # type: ignore[arg-type]
        found = {name.decode(): value.decode() for name, value in begun["headers"]}
        return Answered(begun["status"], found, said.decode())


Open = Callable[[Dashboard], Client]


class Run:
    """The other end of the pipe of a run that goes on: keeps what it is asked for, and answers what it was told to."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[Request] = []
        self.answers: Answer = Scaled(3)
        self._control = Control(directory)
        self._ends, self._wakes = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._control, self._ends], [], [])
            if self._ends in ready:
                return
            for asked in self._control.requests():
                self.asked.append(asked.request)
                self._control.answer(asked, self.answers)

    def end(self) -> None:
        os.write(self._wakes, b".")
        self._thread.join()
        self._control.close()
        os.close(self._ends)
        os.close(self._wakes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One that has ended, with a name that means harm, and one that goes on."""
    below = tmp_path_factory.mktemp("runs")
    simulated_run(below / NAMED, "bsp", EVENTFUL, ("accuracy", EVIL))
    growing = Growing(below / NAMED, below / GOING_ON)
    growing.write(0.5)
    yield below
    growing.end()


@pytest.fixture
def run(runs: Path) -> Iterator[Run]:
    listening = Run(runs / GOING_ON)
    yield listening
    listening.end()


@pytest.fixture
def opened() -> Iterator[Open]:
    clients: list[Client] = []

    def open_it(dashboard: Dashboard) -> Client:
        clients.append(Client(dashboard))
        return clients[-1]

    yield open_it
    for client in clients:
        client.close()


@pytest.fixture
def client(runs: Path, opened: Open) -> Client:
    return opened(Dashboard(Shelf(runs), Access(TOKEN)))


def first_event(client: Client, path: str) -> Any:
    """What whoever opens a page is told first."""
    told = client.ask("GET", path, until=lambda body: b"data: " in body and body.endswith(b"\n\n"))
    assert told.headers["content-type"].startswith("text/event-stream")
    return msgspec.json.decode(told.body.partition("data: ")[2].partition("\n\n")[0])


# -- who may --


@pytest.mark.parametrize(
    ("host", "may"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:7223", True),
        ("localhost:7223", True),
        ("LOCALHOST", True),
        ("[::1]:7223", True),
        ("10.0.0.7:7223", True),  # an address is nobody else's name
        ("", False),
        ("evil.example", False),
        ("evil.example:7223", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1:7223:7223", False),
        ("127.0.0.1@evil.example", False),
        ("127.0.0.1, evil.example", False),  # said twice
    ],
)
def test_the_host_that_was_asked_for(host: str, may: bool, client: Client) -> None:
    refusal = Access(TOKEN).refusal("GET", {"host": host}, TOKEN)
    assert (refusal is None) is may
    assert client.ask("GET", "/", {**BEARER, "host": host}).status == (200 if may else 421)


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:1", "ftp://127.0.0.1:7223"],
)
def test_pages_of_others(origin: str, client: Client, run: Run) -> None:
    for method, path in (
        ("GET", "/"),
        ("GET", f"/events/{GOING_ON}"),
        ("OPTIONS", "/"),
        ("POST", f"/steer/{GOING_ON}"),
    ):
        refused = client.ask(method, path, {**JSON, "origin": origin}, body=b'{"type":"Stop"}')
        assert refused.status == 403 and "may not ask" in refused.body and "access-control" not in str(refused.headers)
    assert run.asked == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_nothing_is_told_and_nothing_done_without_the_token(method: str, client: Client, run: Run) -> None:
    body = b'{"type":"Scale","workers":3}'
    wrong = [
        (HERE, ""),
        (HERE, "token="),
        (HERE, f"token={TOKEN[:-1]}"),
        (HERE, f"token={TOKEN}x"),
        (HERE, f"token={TOKEN.upper()}"),
        (HERE, f"token=x&token={TOKEN}"),
        (HERE, f"Token={TOKEN}"),
        (HERE, "token=%00%ff"),
        ({**HERE, "cookie": f"token={TOKEN}"}, ""),
        ({**HERE, "authorization": TOKEN}, ""),
        ({**HERE, "authorization": f"Basic {TOKEN}"}, ""),
        ({**HERE, "authorization": "Bearer "}, f"token={TOKEN}"),
        ({**HERE, "authorization": "Bearer \xff"}, ""),
        ({**HERE, "referer": f"http://127.0.0.1:7223/?token={TOKEN}"}, ""),
        ({**HERE, "x-token": TOKEN}, f"x={TOKEN}"),
    ]
    for path in ROUTES:
        for headers, query in wrong:
            refused = client.ask(method, path, {**headers, "content-type": "application/json"}, query, body)
            assert refused.status == 403 and refused.body == NEEDED
    assert run.asked == []


def test_a_token_in_an_address_shows_and_steers_nothing(client: Client, run: Run) -> None:
    """Else a link or a form of somebody else's would do, if its address had become known."""
    assert client.ask("GET", "/", HERE, f"token={TOKEN}").status == 200
    headers = {**HERE, "content-type": "application/json"}
    assert client.ask("POST", f"/steer/{GOING_ON}", headers, f"token={TOKEN}", b'{"type":"Stop"}').body == NEEDED
    assert run.asked == []


def test_every_answer_says_how_little_may_be_done_with_it(client: Client) -> None:
    for method, path in (
        ("GET", "/"),
        ("GET", f"/runs/{GOING_ON}"),
        ("GET", "/nothing"),
        ("GET", "/metrics"),
        ("PUT", "/"),
    ):
        for headers in (BEARER, HERE):
            told = client.ask(method, path, headers).headers
            assert told["cache-control"] == "no-store" and told["referrer-policy"] == "no-referrer"
            assert told["x-content-type-options"] == "nosniff" and told["x-frame-options"] == "DENY"
            policy = told["content-security-policy"]
            assert "frame-ancestors 'none'" in policy
            assert told["content-type"].startswith("text/html") or "default-src 'none'" in policy


def test_a_page_may_run_its_own_script_and_nothing_else(client: Client) -> None:
    for path in ("/", f"/runs/{GOING_ON}", f"/runs/{NAMED}"):
        page = client.ask("GET", path).body
        (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
        rules = dict(rule.strip().split(" ", 1) for rule in policy.replace("&#x27;", "'").split(";"))
        assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
        assert rules["connect-src"] == "'self'" and rules["img-src"] == "data:"
        for kind in ("script-src", "style-src"):
            assert re.fullmatch(r"'sha256-[\w+/=]+'", rules[kind])
        assert "<img" not in page and TOKEN not in page and " onclick" not in page and " style=" not in page


# -- what the buttons ask for --


@pytest.mark.parametrize(
    ("body", "answers", "status", "said"),
    [
        ({"type": "Scale", "workers": 3}, Scaled(3), 200, "3 workers; a new one needs a few seconds to start"),
        ({"type": "Evict", "worker": 2}, Evicted(2, 2), 200, "worker 2 is sent away"),
        ({"type": "Stop"}, Stopping(), 200, "it stops: every worker pushes once more"),
        ({"type": "Stop"}, Refused("it is just beginning"), 409, "it is just beginning"),
    ],
)
def test_a_button(body: dict[str, Any], answers: Answer, status: int, said: str, client: Client, run: Run) -> None:
    run.answers = answers
    told = client.ask("POST", f"/steer/{GOING_ON}", JSON, body=msgspec.json.encode(body))
    assert told.status == status and told.body.startswith(said), told
    assert [msgspec.to_builtins(asked) for asked in run.asked] == [body]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"type":"Scale","workers":0}', 409, "0 workers: this run may have at least 1"),
        (b'{"type":"Scale","workers":90000000}', 409, "a group has 99,999 at most"),
        (b'{"type":"Scale","workers":99999}', 409, "more workers need at least"),
        (b'{"type":"Switch","policy":"no such"}', 409, "no such"),
        (b'{"type":"Switch","policy":"ssp:staleness=-1"}', 409, "staleness"),
        (b'{"type":"Evict","worker":-1}', 409, "there is no worker -1"),
        (b"", 400, "not a request"),
        (b"{", 400, "not a request"),
        (b"null", 400, "not a request"),
        (b"[" * 4000, 400, "not a request"),
        (b'{"type":"Scale"}', 400, "not a request"),
        (b'{"type":"Scale","workers":"3"}', 400, "not a request"),
        (b'{"type":"Scale","workers":3.5}', 400, "not a request"),
        (b'{"type":"Scale","workers":1e400}', 400, "not a request"),
        (b'{"type":"Format","disk":"c"}', 400, "not a request"),
        (b'{"type":"Switch","policy":"\xff"}', 400, "not a request"),
        (b'{"type":"Switch","policy":"' + b"x" * LONGEST + b'"}', 413, "a request has at most"),
        (b"x" * 1_000_000, 413, "a request has at most"),
    ],
)
def test_what_is_refused_is_refused_in_a_sentence(
    body: bytes, status: int, said: str, client: Client, run: Run
) -> None:
    told = client.ask("POST", f"/steer/{GOING_ON}", JSON, body=body)
    assert (told.status, said in told.body) == (status, True), told
    assert run.asked == [] and "Traceback" not in told.body


def test_requests_that_are_none(client: Client, run: Run) -> None:
    stop = b'{"type":"Stop"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert client.ask("POST", f"/steer/{GOING_ON}", {**JSON, "content-type": kind}, body=stop).status == 415
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert client.ask(method, f"/steer/{GOING_ON}", JSON, body=stop).status == 405
        assert method in ("GET", "HEAD") or client.ask(method, "/", JSON).status == 405
    assert client.ask("HEAD", f"/events/{GOING_ON}").body == ""
    assert run.asked == []


def test_a_run_that_is_over_and_one_that_does_not_go_on_here(client: Client) -> None:
    for name in (NAMED, GOING_ON):
        told = client.ask("POST", f"/steer/{name}", JSON, body=b'{"type":"Scale","workers":3}')
        assert told.status == 409 and told.body.startswith("no run is going on there")


def test_read_only(runs: Path, run: Run, opened: Open) -> None:
    client = opened(Dashboard(Shelf(runs), Access(TOKEN), steers=False))
    told = client.ask("POST", f"/steer/{GOING_ON}", JSON, body=b'{"type":"Stop"}')
    assert told.status == 403 and "--read-only" in told.body and run.asked == []
    shown = first_event(client, f"/events/{GOING_ON}")
    assert shown["controls"] is None and "data-evict" not in shown["words"]["now"]


# -- what is shown --


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../runs/mine", f"./{GOING_ON}", f"{GOING_ON}/", f"{GOING_ON}/../{GOING_ON}", "/mine", "mine\0",
     "%2e%2e/mine", "/etc", "mine/config.json", "MINE", "checkpoints", "\udcff", "x" * 10_000],
)  # fmt: skip
def test_only_names_of_runs_lead_anywhere(name: str, client: Client, run: Run) -> None:
    for path in ("/runs/", "/events/"):
        if path + name != "/events/":
            told = client.ask("GET", path + name)
            assert told.status == 404 and told.headers["content-type"].startswith("text/plain"), told
    assert client.ask("POST", f"/steer/{name}", JSON, body=b'{"type":"Stop"}').status == 404
    assert run.asked == []


def test_a_name_that_means_harm(client: Client) -> None:
    words = first_event(client, "/events/")["words"]["runs"]
    assert "<img" not in words and "&lt;img" in words
    addresses = re.findall(r'href="([^"]*)"', words)
    assert f"/runs/{quote(NAMED)}?token={TOKEN}" in addresses
    told = first_event(client, f"/events/{NAMED}")
    assert all("<img" not in said for said in told["words"].values()) and "&lt;img" in told["words"]["name"]
    page = client.ask("GET", f"/runs/{NAMED}").body
    assert "&lt;img src=x" in page.partition("</title>")[0]


def test_the_same_page_is_told_to_who_comes_again(client: Client) -> None:
    first = first_event(client, f"/events/{GOING_ON}")
    assert first["whole"] and first["controls"]["workers"] == 3 and "gantt" in first["charts"]
    assert first_event(client, f"/events/{GOING_ON}")["course"] == first["course"]


def test_what_nobody_watches_is_forgotten(tmp_path: Path, runs: Path, opened: Open) -> None:
    for number in range(KEPT + 3):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "config.json").write_bytes((runs / NAMED / "config.json").read_bytes())
    dashboard = Dashboard(Shelf(tmp_path), Access(TOKEN))
    client = opened(dashboard)
    for number in range(KEPT + 3):
        assert "has not begun" in first_event(client, f"/events/{number}")["words"]["notes"]
    assert len(dashboard.followed) == KEPT + 1


def test_figures_for_prometheus(client: Client) -> None:
    told = client.ask("GET", "/metrics")
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(told.body)}
    states = {
        (Path(sample.labels["run"]).name, sample.labels["state"]): sample.value
        for sample in families["paceline_run_state"].samples
    }
    assert states[GOING_ON, "running"] == 1 and states[NAMED, "running"] == 0
    assert {sample.labels["worker"] for sample in families["paceline_worker_pushes"].samples} >= {"0", "2", "3"}


def test_what_is_no_run(tmp_path: Path, runs: Path, opened: Open) -> None:
    """A foreign file, an empty run, a trace that was cut off: each is listed with what can be said of it."""
    configuration = (runs / NAMED / "config.json").read_bytes()
    for name, trace in {
        "foreign": b"GIF89a\xff\xfe",
        "empty": None,
        "cut": (runs / NAMED / "trace.jsonl").read_bytes()[:20_000],
        os.fsdecode(b"no text \xff"): (runs / NAMED / "trace.jsonl").read_bytes(),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(configuration)
        if trace is not None:
            (tmp_path / name / "trace.jsonl").write_bytes(trace)
    client = opened(Dashboard(Shelf(tmp_path), Access(TOKEN)))
    words = first_event(client, "/events/")["words"]["runs"]
    assert "this is not a paceline trace" in words and words.count(">killed<") == 2 and "no text \ufffd" in words
    assert "no text \ufffd" in client.ask("GET", "/metrics").body
    assert "not a paceline trace" in first_event(client, "/events/foreign")["problem"]
    assert "killed" in first_event(client, "/events/cut")["words"]["notes"]
    assert first_event(client, "/events/no text \ufffd")["charts"]


def test_a_run_is_watched_where_it_is(runs: Path, monkeypatch: pytest.MonkeyPatch, opened: Open) -> None:
    """`paceline watch .`"""
    monkeypatch.chdir(runs / GOING_ON)
    found = watched(Path(), "127.0.0.1", 0, price=None, steers=True)
    found.taken.close()
    assert f"/runs/{GOING_ON}?token=" in found.address


def test_what_cannot_be_read_hides_no_other_run(runs: Path, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    """Not of a directory of somebody else's, and not of one that was just taken away."""
    (runs / "apart").mkdir(exist_ok=True)
    known = directories

    def refused(below: Path) -> list[Path]:
        if below.name == "apart":
            raise ConfigurationError(f"{below}: cannot be read: Permission denied")
        return known(below)

    monkeypatch.setattr("paceline.experiment.run_list.directories", refused)
    assert client.ask("GET", "/metrics", BEARER).body.count("paceline_run_info{") == 2
    seen = is_run

    def denied(directory: Path) -> bool:
        if directory.name == "apart":
            raise PermissionError
        return seen(directory)

    monkeypatch.setattr("paceline.experiment.run_list.is_run", denied)
    assert client.ask("GET", "/metrics", BEARER).body.count("paceline_run_info{") == 2
    (runs / "apart").rmdir()


def test_a_page_is_opened_without_telling_everybody_its_token(
    runs: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is on this machine sees the arguments that a browser is started with."""
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    monkeypatch.setattr(Watched, "serve", lambda found: (asked.append(found.address), found.taken.close()))
    paceline(runs, "--port", 0, "--open")
    page = asked[0]
    assert (
        len(asked) == 2 and page.startswith("file://") and "token" not in page and not list(runs.glob(".watch-open*"))
    )
    monkeypatch.setattr("webbrowser.open", lambda page: asked.append(Path(page.removeprefix("file://")).read_text()))
    paceline(runs, "--port", 0, "--open")
    assert escape(asked[-1]) in asked[-2]


def test_a_directory_that_is_taken_away(tmp_path: Path, opened: Open) -> None:
    below = tmp_path / "below"
    below.mkdir()
    client = opened(Dashboard(Shelf(below), Access(TOKEN)))
    assert "There is no run below" in first_event(client, "/events/")["words"]["runs"]
    below.rmdir()
    assert "there is no such directory" in first_event(client, "/events/")["problem"]
    assert client.ask("GET", "/runs/mine").status == 404 and client.ask("GET", "/metrics").status == 503


# -- the token's file --


def test_the_token_is_kept_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    token = token_for(tmp_path)
    path = tmp_path / NAME
    assert len(token) >= 32 and token_for(tmp_path) == token and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)  # others may have read it
    assert token_for(tmp_path) != token and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("short")
    assert len(token_for(tmp_path)) >= 32
    path.unlink()
    os.mkfifo(path, 0o600)
    assert token_for(tmp_path) == token_for(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert token_for(tmp_path) != (tmp_path / "elsewhere").read_text() and not path.is_symlink()
    path.unlink()
    path.mkdir()
    assert len(token_for(tmp_path)) >= 32, "for this time"


# -- a real server --


@pytest.fixture
def server(runs: Path) -> Iterator[Watched]:
    found = watched(runs, "127.0.0.1", 0, price=None, steers=True)
    thread = threading.Thread(target=found.serve)
    thread.start()
    yield found
    found.server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def raw(server: Watched, request: bytes) -> bytes:
    """What it answers until it ends the connection."""
    with socket.create_connection(server.taken.getsockname()) as connection:
        connection.sendall(request)
        return connection.makefile("rb").read()


def test_requests_that_only_a_real_server_sees(
    server: Watched, runs: Path, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    host, port = server.taken.getsockname()
    token = token_for(runs)
    assert server.address == f"http://127.0.0.1:{port}/?token={token}" and host == "127.0.0.1"
    for path in (
        "/runs/../../etc/passwd",
        "/runs/%2e%2e/mine",
        "//evil.example/runs/mine",
        "/runs/mine%00",
        "/%ff",
        "*",
    ):
        told = raw(
            server, f"GET {path}?token={token} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        )
        assert told.split(b" ")[1] in (b"404", b"400"), told
    for bad in (
        b"GET / HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
    ):
        assert raw(server, bad).split(b" ")[1] == b"400"
    assert raw(server, f"GET /?token={token} HTTP/1.0\r\n\r\n".encode()).split(b" ")[1] == b"421"
    head = f"POST /steer/{GOING_ON} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    with socket.create_connection((host, port)) as goes_away:
        goes_away.sendall(head.encode() + b'{"type":"Stop"}')
    connection = http.client.HTTPConnection(host, port)
    connection.request("GET", f"/events/{GOING_ON}?token={token}")
    stream = connection.getresponse()
    assert stream.readline() == b"retry: 1000\n" and stream.readline() == b"\n"
    assert stream.readline().startswith(b"data: {")
    connection.close()
    assert run.asked == []
    assert capfd.readouterr() == ("", ""), "nobody can fill the terminal"


# -- the command --


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys, "watch")


def test_what_cannot_be_watched(tmp_path: Path, runs: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, said in {
            (tmp_path / "nowhere",): "there is no such directory",
            (tmp_path / "file",): "is a file",
            (runs, "--port", port): "is another `paceline watch` there? choose another with --port",
            (runs, "--host", "x" * 300): "is no address of this machine",
            (runs, "--host", "192.0.2.1"): "192.0.2.1",
            (runs, "--price", "-1"): "must be a number from 0",
        }.items():
            refused = paceline(*arguments)
            assert refused.code == 2 and said in refused.err and refused.err.count("\n") <= 2, refused
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused = paceline(runs)
    assert refused.code == 2 and "pip install 'paceline[dashboard]'" in refused.err


def test_others_are_let_in_only_when_asked_for(runs: Path, paceline: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    monkeypatch.setattr(Watched, "serve", lambda found: (served.append(found.address), found.taken.close()))
    here, everywhere = paceline(runs, "--port", 0), paceline(runs, "--port", 0, "--host", "0.0.0.0", "--read-only")
    assert here.err == "Ctrl-C ends this, and no run\n" and "http://127.0.0.1:" in here.out
    assert "may see these runs; nothing is encrypted" in everywhere.err
    assert f"http://{socket.gethostname()}:" in everywhere.out, "0.0.0.0 is nothing that another machine could open"
    alone = paceline(runs / GOING_ON, "--port", 0)
    assert f"/runs/{GOING_ON}?token={token_for(runs / GOING_ON)}" in alone.out and len(served) == 3
