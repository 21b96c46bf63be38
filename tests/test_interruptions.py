"""Which signals end a run, and how."""

from __future__ import annotations

import signal

import pytest

from paceline.experiment.interruptions import THE_SAME, Interruptions
from paceline.runtimes.serving.loop import Loop


def test_the_first_ends_a_run_and_what_comes_right_after_is_the_same() -> None:
    now = 0.0
    interruptions = Interruptions(lambda: now)
    interruptions.loop = loop = Loop()
    interruptions.note(signal.SIGINT, None)
    assert loop.interrupted
    now = THE_SAME / 2
    interruptions.note(signal.SIGTERM, None)
    now = THE_SAME
    with pytest.raises(KeyboardInterrupt):
        interruptions.note(signal.SIGINT, None)
    loop.close()


def test_before_there_is_a_run_the_first_ends_all() -> None:
    with pytest.raises(KeyboardInterrupt), Interruptions():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_one_that_comes_when_all_is_done_is_not_lost() -> None:
    interruptions = Interruptions()
    interruptions.loop = loop = Loop()
    with pytest.raises(KeyboardInterrupt), interruptions:
        signal.raise_signal(signal.SIGINT)
    loop.close()
