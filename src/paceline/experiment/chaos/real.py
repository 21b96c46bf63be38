"""Chaos for real: a run in processes of its own, and somebody who kills, stops and slows them as the plan says.

The time of the plan runs from the moment at which the group first began. Afterwards nothing may be left running, every
sample must have been applied exactly once, the recorded events must lead to the same commands, and the run, trained
again in one process from its trace, to the same weights to the bit.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from paceline.experiment.balance import balance_of
from paceline.experiment.chaos.plan import Fault
from paceline.experiment.chaos.processes import children_of, is_alive, listens_to, send_signal, title_of
from paceline.experiment.chaos.setting import Setting, Subject, Verdict, in_words
from paceline.experiment.chaos.subject import DELAY, LOG, OUTCOME, REPEAT, Outcome, Seen, live
from paceline.experiment.verification import train_again
from paceline.recording.replay import first_difference
from paceline.recording.trace import Trace, trace_in
from paceline.runtimes.local.process import WORKER
from paceline.runtimes.local.zygote import TITLE

MOST_LIVES = 12
TICK = 0.01
STUTTER = 0.05  # seconds: a slow worker moves for so long, and stands still for twice as long, again and again
GONE_WITHIN = 30.0  # seconds after the end of a launcher: a process that is just importing torch notices it late


class Tormentor:
    longest = 90.0  # seconds beyond the plan's, after which a life is stuck
    killed: tuple[str, ...] = ("killed",)  # one of these is in the reason for which a worker leaves that was killed

    def __init__(
        self, subject: Subject, seed: int, plan: Sequence[Fault], setting: Setting, seconds: float, directory: Path
    ) -> None:
        self._subject, self._seed, self._setting, self._seconds = subject, seed, setting, seconds
        self._directory = directory
        self._run_dir = directory / "run"
        self._faults = list(plan)
        self._resume_at: list[tuple[float, int]] = []  # when a stopped process goes on, by the common clock
        self._slow: dict[int, float] = {}  # pid -> until when
        self._began: float | None = None
        self._happened: list[str] = []
        self._killed: list[tuple[float, int]] = []  # when, and its pid
        self._frozen: list[tuple[float, int]] = []
        self._lives = 0
        self._pids: set[int] = set()

    def verdict(self) -> Verdict:
        self._directory.mkdir(parents=True, exist_ok=True)
        outcome, problem = Outcome(), ""
        try:
            outcome = self._all_lives()
            problem = outcome.problem or self._what_is_wrong()
        except Exception as found:  # whatever it is, it is a finding
            problem = in_words(found)
        finally:
            self._end_everything()
        return Verdict(
            problem,
            tuple(self._happened),
            outcome.updates,
            outcome.samples,
            self._lives,
            tuple(self._after_kills()),
            tuple(self._after_freezes()),
            tuple(self._after_lost_shards()),
        )

    # -- lives --

    def _all_lives(self) -> Outcome:
        while True:
            self._lives += 1
            outcome = self._live()
            if outcome is not None and not outcome.gave_up:
                return outcome
            if outcome is not None:
                self._say(f"the run gives up, and is begun again: {outcome.problem}")
            assert self._lives < MOST_LIVES, f"not done after {MOST_LIVES} lives"

    def _live(self) -> Outcome | None:
        """How it ended; None: it was killed."""
        (self._directory / OUTCOME).unlink(missing_ok=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["paceline.experiment.chaos.subject"])
        launcher = context.Process(target=live, args=self._arguments(), name="paceline chaos")
        launcher.start()
        end = time.monotonic() + self._seconds + self.longest
        crashed = False
        try:
            while launcher.is_alive():
                assert time.monotonic() < end, f"stuck: {self._seconds + self.longest:g} s are over"
                crashed = self._torment(launcher) or crashed
                launcher.join(TICK)
        finally:
            if launcher.is_alive():
                launcher.kill()
                launcher.join()
        self._wait_until_gone()
        written = self._directory / OUTCOME
        if written.exists():
            return msgspec.json.decode(written.read_bytes(), type=Outcome)
        assert crashed, f"the launcher ended with exit code {launcher.exitcode}"
        return None

    def _arguments(self) -> tuple[Any, ...]:
        """What a launcher is told."""
        return self._run_dir, self._subject, self._seed, self._setting, self._seconds

    def _wait_until_gone(self) -> None:
        for pid in (*self._pids, *(pid for _, pid in self._resume_at)):
            send_signal(pid, signal.SIGCONT)  # one that was stopped while it started could not notice
        end = time.monotonic() + GONE_WITHIN
        while left := self._left():
            assert time.monotonic() < end, f"{left} outlived their launcher"
            time.sleep(TICK)
        self._pids.clear()
        self._resume_at.clear()
        self._slow.clear()

    def _left(self) -> str:
        """What there still is of the run after its launcher, in words."""
        left = [pid for pid in self._pids if is_alive(pid)]
        return f"processes {left}" if left else ""

    def _end_everything(self) -> None:
        for pid in self._pids:
            send_signal(pid, signal.SIGKILL)

    # -- torment --

    def _torment(self, launcher: BaseProcess) -> bool:
        """Do what is due. Returns whether the launcher was killed."""
        assert launcher.pid is not None
        workers = self._workers(launcher.pid)
        self._pids.update(workers)
        now = time.monotonic()
        if self._began is None:
            self._began = next((seen.at for seen in self._log() if seen.what == "begun"), None)
            if self._began is None:
                return False
        self._let_move(now)
        while self._faults and self._began + self._faults[0].at <= now:
            fault = self._faults.pop(0)
            if fault.kind == "crash":
                self._say("the launcher is killed")
                launcher.kill()
                return True
            if targets := self._targets(fault, workers):
                self._befall(fault, targets[fault.worker % len(targets)], now)
        return False

    def _workers(self, launcher: int) -> list[int]:
        """The processes of the workers, in their order."""
        return _workers_of(launcher)

    def _targets(self, fault: Fault, workers: list[int]) -> list[int]:
        """The processes of which the fault befalls one."""
        return workers

    def _befall(self, fault: Fault, pid: int, now: float) -> None:
        lasts = f" for {fault.seconds:g} s" if fault.seconds else ""
        if fault.kind in ("duplicate", "delay"):
            number = REPEAT if fault.kind == "duplicate" else DELAY
            if not listens_to(pid, number):
                return  # it is just starting
            send_signal(pid, number)
        elif fault.kind == "kill":
            send_signal(pid, signal.SIGKILL)
            self._killed.append((now, pid))
        elif fault.kind == "freeze":
            send_signal(pid, signal.SIGSTOP)
            self._frozen.append((now, pid))
            self._resume_at.append((now + fault.seconds, pid))
        else:
            self._slow[pid] = now + fault.seconds
        self._say(f"{fault.kind} process {pid}{lasts}")

    def _let_move(self, now: float) -> None:
        for time_, pid in [entry for entry in self._resume_at if entry[0] <= now]:
            self._resume_at.remove((time_, pid))
            send_signal(pid, signal.SIGCONT)
        for pid, until in list(self._slow.items()):
            if now >= until:
                del self._slow[pid]
            if not any(other == pid for _, other in self._resume_at):  # one that stands still is not only slow
                moves = now >= until or int((until - now) / STUTTER) % 3 == 0
                send_signal(pid, signal.SIGCONT if moves else signal.SIGSTOP)

    def _say(self, what: str) -> None:
        since = 0.0 if self._began is None else time.monotonic() - self._began
        self._happened.append(f"{since:.2f}: {what}")

    # -- what became of it --

    def _what_is_wrong(self) -> str:
        """In words; empty: nothing."""
        balance = balance_of(self._run_dir)
        for epoch in balance.epochs:
            if epoch.applied != epoch.samples:
                return f"epoch {epoch.epoch + 1}: of {epoch.samples} samples {epoch.applied} were applied exactly once"
        if not balance.epochs:
            return "the trace does not say what the data set is"
        different = first_difference(Trace(trace_in(self._run_dir), allow_cut_off=True))
        if different is not None:
            return f"line {different[0]} of the trace: the replay departs"
        again = train_again(self._run_dir)
        if again.differs_at is not None:
            return f"trained again, the weights differ after update {again.differs_at} ({again.parameter})"
        return ""

    def _log(self) -> list[Seen]:
        path = self._directory / LOG
        if not path.exists():
            return []
        lines = path.read_bytes().splitlines(keepends=True)
        return [msgspec.json.decode(line, type=Seen) for line in lines if line.endswith(b"\n")]

    def _departures(self, faults: list[tuple[float, int]], *why: str) -> Iterator[tuple[float, Seen]]:
        """When each fault was, and how its worker left because of it, if it was a member.

        One that had come back before has another id, and is left out.
        """
        log = self._log()
        worker_of = {seen.pid: seen.worker for seen in log if seen.what == "process"}
        left = [seen for seen in log if seen.what == "left" and any(reason in seen.reason for reason in why)]
        for at, pid in faults:
            for seen in left:
                if seen.at >= at and seen.worker == worker_of.get(pid):
                    yield at, seen
                    break

    def _after_kills(self) -> Iterator[float]:
        """Seconds from each kill until the group had gone on without that worker, where anybody was left."""
        updates = [seen.at for seen in self._log() if seen.what == "update"]
        for at, left in self._departures(self._killed, *self.killed):
            for update in updates:
                if left.others and update >= left.at:
                    yield round(update - at, 4)
                    break

    def _after_freezes(self) -> Iterator[tuple[float, float]]:
        """Seconds from each freeze until the worker was set aside, and how long it usually needs."""
        usual = {seen.worker: seen.usual for seen in self._log() if seen.what == "suspected"}
        for at, left in self._departures(self._frozen, "set aside"):
            yield round(left.at - at, 4), round(usual.get(left.worker) or 0.0, 4)

    def _after_lost_shards(self) -> Iterator[float]:
        """Seconds from each death of a shard until the group began again from its last checkpoint."""
        return iter(())


def _workers_of(pid: int) -> list[int]:
    """The processes that a launcher started for its workers."""
    found = []
    for child in children_of(pid):
        if title_of(child) == TITLE:
            found += [worker for worker in children_of(child) if title_of(worker).startswith(WORKER)]
    return sorted(found)


def run_for_real(
    subject: Subject, seed: int, plan: Sequence[Fault], setting: Setting, seconds: float, directory: Path
) -> Verdict:
    return Tormentor(subject, seed, plan, setting, seconds, directory).verdict()
