"""Files of lines: only their user may read them, and compressed ones survive their writer and can be cut."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from paceline.core.errors import ConfigurationError
from paceline.core.messages import Record, WorkerJoined
from paceline.recording.lines import LinesWriter, lines_of, write_privately
from paceline.recording.trace import Trace, TraceWriter, cut_to, trace_in


def records(number: int) -> list[Record]:
    return [Record(float(worker), WorkerJoined(worker)) for worker in range(number)]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_trace_is_read_as_it_was_written_and_nobody_else_may_read_it(name: str, tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / name, "asp")
    for record in records(3000):
        writer.observe(record)
    writer.close(5.0)
    assert trace_in(tmp_path) == tmp_path / name
    trace = Trace(tmp_path / name)
    assert list(trace) == records(3000) and (trace.end, trace.records) == (5.0, 3000)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_anybody_else_can_read_a_compressed_trace_with_gzip(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    writer = TraceWriter(path, "asp")
    for record in records(10):
        writer.observe(record)
        assert writer.bytes == path.stat().st_size
    writer.close(5.0)
    assert gzip.decompress(path.read_bytes()).count(b"\n") == 12


def test_a_compressed_file_is_whole_up_to_the_last_flush_of_a_writer_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "lines.gz"
    writer = LinesWriter(path)
    writer.write(b"one\n" * 1000)
    writer.flush()
    flushed = path.stat().st_size
    for number in range(100_000):
        writer.write(b"%d\n" % (number * number))
    writer.close()
    content, torn = path.read_bytes(), tmp_path / "torn.gz"
    for size in (flushed, flushed + 1, flushed + 100, len(content) - 1):
        torn.write_bytes(content[:size])
        assert list(lines_of(torn))[:1000] == [b"one\n"] * 1000
    torn.write_bytes(content + b"no member")
    assert len(list(lines_of(torn))) == 101_000


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_trace_is_cut_where_a_checkpoint_was_and_goes_on(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    writer = TraceWriter(tmp_path / f"first {name}", "asp")
    for record in records(5):
        writer.observe(record)
    size = writer.bytes
    for record in records(9)[5:]:
        writer.observe(record)
    assert writer.bytes > size
    path.write_bytes((tmp_path / f"first {name}").read_bytes())  # as if its writer were killed here
    writer.close(0.0)
    beside = cut_to(path, size)
    assert beside == tmp_path / name.replace("trace", "trace.lost-1")
    assert len(list(lines_of(beside))) == 4 and beside.stat().st_mode & 0o777 == 0o600
    again = TraceWriter(path, "asp", after=size)
    for record in records(7)[5:]:
        again.observe(record)
    again.close(9.0)
    assert list(Trace(path)) == records(7)


def test_a_line_without_an_end_is_given_as_it_is(tmp_path: Path) -> None:
    writer = LinesWriter(tmp_path / "lines.gz")
    writer.write(b"whole\nnot whole")
    writer.close()
    assert list(lines_of(tmp_path / "lines.gz")) == [b"whole\n", b"not whole"]


def test_what_is_written_privately_is_private(tmp_path: Path) -> None:
    write_privately(tmp_path / "file", b"secret")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_what_is_written_privately_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    write_privately(link, b"whole")
    assert file.read_bytes() == b"whole" and link.is_symlink()
    with open(file, "rb") as before:
        write_privately(link, b"another")
        assert before.read() == b"whole" and file.read_bytes() == b"another"
    monkeypatch.setattr("paceline.recording.lines.open_private", broken)
    with pytest.raises(OSError, match="no space"):
        write_privately(link, b"half of it")
    assert file.read_bytes() == b"another" and sorted(tmp_path.iterdir()) == [file, link]
    monkeypatch.undo()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_privately(pipe, b"no file")
    assert os.read(reader, 100) == b"no file" and pipe.is_fifo()
    os.close(reader)


def broken(path: Path) -> BinaryIO:
    path.write_bytes(b"half")
    raise OSError("no space")


def test_a_file_that_is_shorter_than_its_checkpoint_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="is shorter than the checkpoint says"):
        cut_to(tmp_path / "trace.jsonl", 100)
    assert (tmp_path / "trace.jsonl").read_bytes() == b"short"
