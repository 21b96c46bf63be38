"""The errors of paceline: which rule was broken by whom, and what to do about it."""

from typing import Any


class PacelineError(Exception):
    """Base of every error that paceline raises on purpose."""

    result: Any = None  # of a run that failed: what it had come to, as `launch` would have returned it


class ConfigurationError(PacelineError, ValueError):
    """What the user asked for cannot be built; the message says what would work."""


class ProtocolError(PacelineError):
    """A worker broke the protocol: pushed while it waited, skipped a clock, came back after it left."""

    def __init__(self, worker: int, state: str, problem: str) -> None:
        super().__init__(f"worker {worker} ({state}): {problem}")
        self.worker = worker
        self.state = state
        self.problem = problem


class PolicyError(PacelineError):
    """A policy broke the contract: two fates for one gradient, the release of a computing worker, everybody waiting."""

    def __init__(self, policy: str, problem: str, recent: tuple[str, ...]) -> None:
        history = "".join(f"\n  {line}" for line in recent)
        super().__init__(f"policy {policy}: {problem}\nthe last decisions, newest at the end:{history}")
        self.policy = policy
        self.problem = problem
        self.recent = recent


class TraceError(PacelineError):
    """A trace file is foreign, cut off or damaged; the message names the file and the line."""
