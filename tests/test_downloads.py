"""Data sets from a real server on this machine, which answers, refuses, lies, stops halfway or says nothing at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import socket
import struct
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from paceline.cli import main
from paceline.core.errors import ConfigurationError
from paceline.training import datasets, downloads
from paceline.training.downloads import SOURCES, File, cache_folder, download

NAME = "train-labels-idx1-ubyte.gz"
BODY = bytes(range(256)) * 40
OFFICIAL = dict(SOURCES)


class Answer(NamedTuple):
    body: bytes
    status: int = 200
    announced: int | None = None  # the Content-Length, if it is not that of the body
    tells_length: bool = True


class Server(ThreadingHTTPServer):
    """Answers as `answers` says, 404 to all else, and keeps silent at /silent/ until it is closed."""

    daemon_threads = False  # so that closing waits for them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.closing = threading.Event()

    def folder(self, name: str = "good") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path.startswith("/silent/"):
            self.server.closing.wait()
            return
        answer = self.server.answers.get(self.path, Answer(b"nothing here", 404))
        self.send_response(answer.status)
        if answer.tells_length:
            self.send_header("Content-Length", str(len(answer.body) if answer.announced is None else answer.announced))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = Server()
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        found.closing.set()
        found.shutdown()
        thread.join()
        found.server_close()


def publish(
    monkeypatch: pytest.MonkeyPatch, server: Server, name: str, files: dict[str, bytes], *first: str
) -> list[str]:
    """Make `files` the whole of this set, to be had in the server's good folder, after the folders named first."""
    expected = tuple(File(each, len(body), hashlib.sha256(body).hexdigest()) for each, body in files.items())
    folders = (*first, server.folder())
    monkeypatch.setitem(SOURCES, name, OFFICIAL[name]._replace(folders=folders, files=expected))
    server.answers |= {f"/good/{each}": Answer(body) for each, body in files.items()}
    return [f"{each}/{NAME}" for each in folders]


def everything_in(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def refusal(folder: Path) -> str:
    """The sentence of a download that failed; nothing may be left of it."""
    with pytest.raises(ConfigurationError) as caught:
        download("fashion-mnist", folder, lambda _: None)
    assert everything_in(folder) == {}
    return str(caught.value)


INSTEAD = "apt-get install dataset-fashion-mnist, or give the folder that has it with --data PATH"


# -- what arrives --


def test_a_second_call_fetches_nothing(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {NAME: BODY, "other.gz": b"", "third.gz": b"3"}
    addresses = publish(monkeypatch, server, "fashion-mnist", files)
    told: list[str] = []
    folder = download("fashion-mnist", tmp_path / "a" / "b", told.append)
    assert folder == tmp_path / "a" / "b" and everything_in(folder) == files
    assert server.asked == [f"/good/{each}" for each in files] and told[0] == f"{addresses[0]}: 10,240 bytes"
    told.clear()
    assert download("fashion-mnist", folder, told.append) == folder
    assert len(server.asked) == 3 and told == [f"{folder / each}: is there already" for each in files]


def test_a_file_gets_the_usual_permissions(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    publish(monkeypatch, server, "fashion-mnist", {NAME: BODY})
    (tmp_path / "usual").touch()
    found = download("fashion-mnist", tmp_path / "new", lambda _: None) / NAME
    assert found.stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("wrong", [BODY[:-1], b"x" + BODY[1:], BODY + b"x"], ids=["short", "changed", "long"])
def test_a_wrong_file_that_is_there_is_replaced(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: bytes
) -> None:
    publish(monkeypatch, server, "fashion-mnist", {NAME: BODY, "other.gz": b"2"})
    (tmp_path / NAME).write_bytes(wrong)
    (tmp_path / "other.gz").write_bytes(b"2")
    download("fashion-mnist", tmp_path, lambda _: None)
    assert everything_in(tmp_path) == {NAME: BODY, "other.gz": b"2"} and server.asked == [f"/good/{NAME}"]


def test_a_long_file_reports_how_far_it_is(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(downloads, "PIECE", 4096)
    publish(monkeypatch, server, "fashion-mnist", {NAME: BODY})
    told: list[str] = []
    download("fashion-mnist", tmp_path, told.append)
    assert told[1:] == [f"{NAME}: 4,096 of 10,240 bytes", f"{NAME}: 8,192 of 10,240 bytes"]
    assert everything_in(tmp_path) == {NAME: BODY}


def test_the_cache_is_where_xdg_says_or_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder("cifar10") == tmp_path / "cache" / "paceline" / "cifar10"
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder("cifar10") == tmp_path / "home" / ".cache" / "paceline" / "cifar10"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does for a user whom the system forgot
    with pytest.raises(ConfigurationError, match="cifar10: you have no home folder; set XDG_CACHE_HOME to a folder"):
        cache_folder("cifar10")


# -- what does not --


def test_after_a_404_the_next_address_is_asked(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    addresses = publish(monkeypatch, server, "fashion-mnist", {NAME: BODY}, server.folder("gone"))
    told: list[str] = []
    download("fashion-mnist", tmp_path, told.append)
    assert everything_in(tmp_path) == {NAME: BODY} and server.asked == [f"/gone/{NAME}", f"/good/{NAME}"]
    assert told[1] == f"{addresses[0]}: 404 Not Found"


OTHER = b"x" * len(BODY)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(b"sorry", 503), "503 Service Unavailable"),
        (Answer(OTHER), f"another file came, with the SHA-256 {hashlib.sha256(OTHER).hexdigest()}"),
        (Answer(BODY[:99]), "it has 99 bytes instead of 10,240"),
        (Answer(BODY + b"x"), "it has 10,241 bytes instead of 10,240"),
        (Answer(BODY[:99], tells_length=False), "99 bytes came instead of 10,240"),
        (Answer(BODY + b"x", tells_length=False), "10,241 bytes came instead of 10,240"),
        (Answer(BODY * 99, tells_length=False), "12,288 bytes came instead of 10,240"),
    ],
)
def test_an_answer_that_is_not_the_file(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Answer, problem: str
) -> None:
    monkeypatch.setattr(downloads, "PIECE", 4096)
    (address,) = publish(monkeypatch, server, "fashion-mnist", {NAME: BODY})
    server.answers[f"/good/{NAME}"] = answer
    assert refusal(tmp_path) == f"{NAME} could not be downloaded ({address}: {problem}): {INSTEAD}"


def test_a_body_that_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (address,) = publish(monkeypatch, server, "fashion-mnist", {NAME: BODY})
    server.answers[f"/good/{NAME}"] = Answer(BODY[:5000], announced=len(BODY))
    said = refusal(tmp_path)  # what http.client makes of it depends on the version of Python
    assert said.startswith(f"{NAME} could not be downloaded ({address}: ") and "5000" in said.replace(",", "")


def test_nobody_listens(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as bound:  # and not listening, so that the port is nobody else's
        bound.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{bound.getsockname()[1]}"
        first, second = publish(monkeypatch, server, "fashion-mnist", {NAME: BODY}, nobody)
        del server.answers[f"/good/{NAME}"]
        problems = f"{first}: Connection refused; {second}: 404 Not Found"
        assert refusal(tmp_path) == f"{NAME} could not be downloaded ({problems}): {INSTEAD}"


def test_a_server_that_never_answers(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(downloads, "TIMEOUT", 0.05)
    silent, _ = publish(monkeypatch, server, "fashion-mnist", {NAME: BODY}, server.folder("silent"))
    server.answers.clear()
    assert f"({silent}: timed out; " in refusal(tmp_path)


def test_an_interrupted_download_leaves_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(told: str) -> None:
        if "4,096 of" in told:
            raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "PIECE", 4096)
    publish(monkeypatch, server, "fashion-mnist", {NAME: BODY})
    with pytest.raises(KeyboardInterrupt):
        download("fashion-mnist", tmp_path, interrupt)
    assert everything_in(tmp_path) == {}


def test_a_folder_that_cannot_be(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    publish(monkeypatch, server, "fashion-mnist", {NAME: BODY})
    (tmp_path / "file").touch()
    (tmp_path / "taken" / NAME).mkdir(parents=True)
    for folder, problem in (
        (tmp_path / "file", "File exists"),
        (tmp_path / "file" / "below", "Not a directory"),
        (tmp_path / "taken", "Is a directory"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            download("fashion-mnist", folder, lambda _: None)
        assert str(caught.value) == f"{folder} cannot hold fashion-mnist: {problem}; try another, --into DIR"


def test_a_folder_that_must_not_be_written(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    publish(monkeypatch, server, "fashion-mnist", {NAME: BODY})
    monkeypatch.setattr(downloads.tempfile, "TemporaryDirectory", refuse)  # root may write everywhere
    assert refusal(tmp_path) == f"{tmp_path} cannot hold fashion-mnist: Permission denied; try another, --into DIR"


def test_a_reader_who_is_gone_is_not_the_fault_of_the_folder(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone(_: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    publish(monkeypatch, server, "fashion-mnist", {NAME: BODY})
    with pytest.raises(BrokenPipeError):
        download("fashion-mnist", tmp_path, gone)


# -- the command --


class Outcome(NamedTuple):
    code: object
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Outcome(ended.value.code, *capsys.readouterr())

    return run


def test_the_command_says_where_the_set_is_and_how_to_use_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paceline: Command
) -> None:
    (address,) = publish(monkeypatch, server, "fashion-mnist", {NAME: BODY})
    cache, own = cache_folder("fashion-mnist"), tmp_path / "my own"
    said = f"fashion-mnist is in {cache}; to train on it: paceline train fashion-mnist\n"
    assert paceline("download", "fashion-mnist") == Outcome(0, said, f"{address}: 10,240 bytes\n")
    assert paceline("download", "fashion-mnist") == Outcome(0, said, f"{cache / NAME}: is there already\n")
    said = f"fashion-mnist is in {own}; to train on it: paceline train fashion-mnist --data '{own}'\n"
    assert paceline("download", "fashion-mnist", "--into", str(own)) == Outcome(0, said, f"{address}: 10,240 bytes\n")
    assert everything_in(cache) == everything_in(own) == {NAME: BODY}


def test_the_command_fails_in_one_sentence(server: Server, monkeypatch: pytest.MonkeyPatch, paceline: Command) -> None:
    (address,) = publish(monkeypatch, server, "cifar10", {NAME: BODY})
    server.answers.clear()
    outcome = paceline("download", "cifar10")
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.splitlines()[-1] == (
        f"paceline: error: {NAME} could not be downloaded ({address}: 404 Not Found):"
        " fetch cifar-10-binary.tar.gz in another way and give it with --data PATH"
    )
    unknown = "paceline: error: 'digits' cannot be downloaded; these can: fashion-mnist, cifar10\n"
    assert paceline("download", "digits") == Outcome(2, "", unknown)


# -- what is published, and what is made of it --


def test_the_official_sources_are_well_formed() -> None:
    for name, source in OFFICIAL.items():
        assert name in datasets.DATASETS and len(source.folders) > 1 and "--data PATH" in source.instead
        assert all(each.startswith(("https://", "http://")) and not each.endswith("/") for each in source.folders)
        for file in source.files:
            assert file.size > 0 and len(bytes.fromhex(file.sha256)) == 32 and file.sha256.islower()
        assert len({file.sha256 for file in source.files}) == len(source.files)


def idx(*shape: int) -> bytes:
    contents = bytes(number % 10 for number in range(math.prod(shape)))
    return gzip.compress(bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + contents)


def test_a_downloaded_fashion_mnist_loads(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [file.name for file in OFFICIAL["fashion-mnist"].files]
    bodies = [idx(20, 28, 28), idx(20), idx(7, 28, 28), idx(7)]
    publish(monkeypatch, server, "fashion-mnist", dict(zip(names, bodies, strict=True)))
    monkeypatch.setattr(datasets, "FASHION_MNIST", tmp_path / "nothing")
    own = download("fashion-mnist", tmp_path / "own", lambda _: None)
    download("fashion-mnist", tell=lambda _: None)
    for place in (None, own):
        found = datasets.read("fashion-mnist", place)
        assert (len(found.train), len(found.test), found.shape) == (20, 7, (1, 28, 28))
        assert found.test.tensors[1].tolist() == list(range(7))


def test_a_downloaded_cifar10_loads(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for number, name in enumerate([*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = 2 * 3073
            archive.addfile(member, io.BytesIO((bytes([number]) + bytes(range(256)) * 12) * 2))
    (official,) = OFFICIAL["cifar10"].files
    publish(monkeypatch, server, "cifar10", {official.name: file.getvalue()})
    own = download("cifar10", tmp_path / "own", lambda _: None)
    download("cifar10", tell=lambda _: None)
    for place in (None, own, own / official.name):
        found = datasets.read("cifar10", place)
        assert found.shape == (3, 32, 32)
        assert found.train.tensors[1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert found.test.tensors[1].tolist() == [5, 5]
