"""The CSV of recorded iteration times: what is read, and what every kind of broken file is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_keeper import RecordKeeper

from paceline.core.errors import ConfigurationError
from paceline.core.messages import GradientArrived
from paceline.experiment import Simulation, simulate
from paceline.runtimes.iteration_times import read_iteration_times

HEADER = "worker,iteration,seconds\n"


def times(tmp_path: Path, text: str | bytes) -> dict[int, tuple[float, ...]]:
    path = tmp_path / "times.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_iteration_times(path)


def refusal(tmp_path: Path, text: str | bytes) -> str:
    """The message, without the path that it must begin with."""
    with pytest.raises(ConfigurationError) as caught:
        times(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "times.csv"))
    return message.removeprefix(str(tmp_path / "times.csv"))


def test_a_good_file(tmp_path: Path) -> None:
    assert times(tmp_path, HEADER + "0,0,1.0\n0,1,1.5\n1,0,2\n1,1,2e-1\n") == {0: (1.0, 1.5), 1: (2.0, 0.2)}


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + HEADER + "0,0,1.0\n3,0,2.0\n",  # a byte order mark, as spreadsheets write it
        "host,seconds,worker,loss,iteration\na,1.0,0,9,0\nb,2.0,3,9,0\n",  # other columns, another order
        HEADER + "3,0,2.0\n0,0,1.0\n",
        (HEADER + "0,0,1.0\n3,0,2.0\n").replace("\n", "\r\n"),
        HEADER + "0,0,1.0\n3,0,2.0",  # no newline at the end
        HEADER + "\n0,0,1.0\n\n3,0,2.0\n\n",
        "worker, iteration, seconds\n0, 0, 1.0\n3, 0, 2.0\n",
        '"worker","iteration","seconds"\n"0","0","1.0"\n"3","0","2.0"\n',
        HEADER + "0,0,1.0,surplus\n3,0,2.0\n",
    ],
)
def test_files_as_they_are_found(text: str, tmp_path: Path) -> None:
    assert times(tmp_path, text) == {0: (1.0,), 3: (2.0,)}


def test_rows_are_put_in_the_order_of_their_iterations(tmp_path: Path) -> None:
    assert times(tmp_path, HEADER + "1,7,3.0\n0,2,0.2\n1,2,1.0\n0,0,0.1\n1,5,2.0\n") == {
        0: (0.1, 0.2),
        1: (1.0, 2.0, 3.0),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            ", line 1: no column worker, iteration, seconds; the first line must name worker, iteration and seconds",
        ),
        (
            "worker,seconds\n0,1.0\n",
            ", line 1: no column iteration; the first line must name worker, iteration and seconds",
        ),
        (
            "0,0,1.0\n",
            ", line 1: no column worker, iteration, seconds; the first line must name worker, iteration and seconds",
        ),
        (HEADER, ": has no rows; one row per worker and iteration is needed"),
        (HEADER + "\n\n", ": has no rows; one row per worker and iteration is needed"),
        (HEADER + "0,0,1.0\n0,1,soon\n", ", line 3: seconds is soon; it must be a number above 0"),
        (HEADER + "0,0,-1.0\n", ", line 2: seconds is -1.0; it must be a number above 0"),
        (HEADER + "0,0,0\n", ", line 2: seconds is 0; it must be a number above 0"),
        (HEADER + "0,0,nan\n", ", line 2: seconds is nan; it must be a number above 0"),
        (HEADER + "0,0,inf\n", ", line 2: seconds is inf; it must be a number above 0"),
        (HEADER + "0,0,1e999\n", ", line 2: seconds is 1e999; it must be a number above 0"),
        (HEADER + "0,0,\n", ", line 2: seconds is missing; it must be a number above 0"),
        (HEADER + "0,0\n", ", line 2: seconds is missing; it must be a number above 0"),
        (HEADER + "a,0,1.0\n", ", line 2: worker is a; it must be a whole number from 0"),
        (HEADER + "-1,0,1.0\n", ", line 2: worker is -1; it must be a whole number from 0"),
        (HEADER + "0,0.5,1.0\n", ", line 2: iteration is 0.5; it must be a whole number from 0"),
        (HEADER + "0\n", ", line 2: iteration is missing; it must be a whole number from 0"),
        (HEADER + "0,0,1.0\n\n1,0,1.0\n0,0,2.0\n", ", line 5: iteration 0 of worker 0 is there twice"),
        (bytes(range(256)), ": is not a text file"),
        (HEADER.encode() + b"0,0,1.0\n\xff\xfe\n", ": is not a text file"),
        (HEADER.encode("utf-16"), ": is not a text file"),
        (HEADER + "0,0," + "1" * 200_000 + "\n", ", line 2: field larger than field limit (131072)"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(text: str | bytes, message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, text) == message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_iteration_times(tmp_path / "nothing.csv")
    assert str(caught.value) == f"{tmp_path / 'nothing.csv'}: cannot be read: No such file or directory"
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        read_iteration_times(tmp_path)


def test_recorded_times_are_used_in_order_and_from_the_beginning_again(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(HEADER + "4,0,1\n4,1,2\n9,0,2.5\n")
    keeper = RecordKeeper()
    summary = simulate("asp", Simulation(trace=str(path), duration=9.0), observers=[keeper])
    arrivals = [
        (record.now, record.event.gradient.worker)
        for record in keeper.records
        if isinstance(record.event, GradientArrived)
    ]
    assert [now for now, worker in arrivals if worker == 4] == [1.0, 3.0, 4.0, 6.0, 7.0, 9.0]
    assert [now for now, worker in arrivals if worker == 9] == [2.5, 5.0, 7.5]
    assert [each.worker for each in summary.workers] == [4, 9]
