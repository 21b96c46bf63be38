"""A model's state as a safetensors file: any tool can read it, and loading it runs no code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.errors import ConfigurationError


def save_state(state: Mapping[str, Tensor], path: Path, facts: Mapping[str, str]) -> None:
    """Write it whole or not at all. Tied tensors are written once per key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    save_file({key: tensor.contiguous().clone() for key, tensor in state.items()}, unfinished, metadata=dict(facts))
    os.replace(unfinished, path)


def load_state(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as problem:  # safetensors has an error class of its own, and passes on those of the file system
        raise ConfigurationError(f"{path}: cannot be read as a model's state: {problem}") from None
