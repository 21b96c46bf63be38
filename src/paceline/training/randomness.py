"""Random numbers that belong to a piece of work: those of the process go on afterwards as if nothing had been."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from paceline.training.worker_state import random_state, set_random_state

CPU = torch.device("cpu")


def mixed(*numbers: int) -> int:
    """One seed of several numbers."""
    found = 0
    for number in numbers:
        found = (found * 1_000_003 + number) % 2**63
    return found


def seed_here(seed: int) -> None:
    """Python's, NumPy's and torch's own. A GPU's stay what they are: data are loaded on the CPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def numbers_of(seed: int) -> Iterator[None]:
    """Inside, random numbers follow from the seed alone; afterwards they go on as if nothing had been."""
    before = random_state(CPU)
    seed_here(seed)
    try:
        yield
    finally:
        set_random_state(before, CPU)


@contextlib.contextmanager
def numbers_of_sampler(sampler: Any, seed: int) -> Iterator[None]:
    """The same for a sampler, and for the generators that it holds."""
    with numbers_of(seed):
        back = [_reseed(generator, mixed(seed, place)) for place, generator in enumerate(_generators_in(sampler))]
        try:
            yield
        finally:
            for restore in back:
                restore()


def _generators_in(thing: Any) -> list[Any]:
    found: list[Any] = []
    for held in getattr(thing, "__dict__", {}).values():
        if isinstance(held, torch.Generator | random.Random | np.random.Generator | np.random.RandomState):
            found.append(held)
        elif isinstance(held, Sampler):
            found.extend(_generators_in(held))
    return found


def _reseed(generator: Any, seed: int) -> Callable[[], Any]:
    """Returns what makes it what it was."""
    if isinstance(generator, torch.Generator):
        tensor = generator.get_state()
        generator.manual_seed(seed)
        return lambda: generator.set_state(tensor)
    if isinstance(generator, random.Random):
        own = generator.getstate()
        generator.seed(seed)
        return lambda: generator.setstate(own)
    if isinstance(generator, np.random.RandomState):
        legacy = generator.get_state()
        generator.seed(seed % 2**32)
        return lambda: generator.set_state(legacy)
    state = generator.bit_generator.state
    generator.bit_generator.state = type(generator.bit_generator)(seed).state
    return lambda: setattr(generator.bit_generator, "state", state)
