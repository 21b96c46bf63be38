"""The order of the members' clocks, against sorting."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from paceline.core.progress import Clocks


@given(st.lists(st.tuples(st.sampled_from(["enter", "advance", "exit"]), st.integers(0, 5)), max_size=80))
def test_least_greatest_and_last_are_what_sorting_says(steps: list[tuple[str, int]]) -> None:
    clocks = Clocks()
    standing: dict[int, tuple[int, int]] = {}  # worker -> standing, since which step
    for number, (step, worker) in enumerate(steps):
        if step == "enter" and worker not in standing:
            standing[worker] = (clocks.enter(worker), number)
        elif step == "advance" and worker in standing:
            clocks.advance(worker, standing[worker][0])
            standing[worker] = (standing[worker][0] + 1, number)
        elif step == "exit" and worker in standing:
            clocks.exit(worker, standing.pop(worker)[0])
        if standing:
            assert clocks.least == min(standing.values())[0]
            assert clocks.greatest == max(standing.values())[0]
            assert clocks.last() == min(standing, key=lambda each: standing[each])
