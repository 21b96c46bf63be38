"""What only a worker's process knows, as bytes and back: random numbers, its place in batches of its own, things that
the user wants to be kept. It crosses as JSON and safetensors: loading it runs no code."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import load, save

from paceline.training.trees import put_together, taken_apart


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    structure: Any
    tensors: bytes


def packed(tree: Any) -> bytes:
    structure, tensors = taken_apart(tree, "the worker's state")
    return msgspec.msgpack.encode(_Packed(structure, save(tensors)))


def unpacked(state: bytes) -> Any:
    found = msgspec.msgpack.decode(state, type=_Packed)
    return put_together(found.structure, load(found.tensors))


def random_state(device: torch.device) -> dict[str, Any]:
    """Of all generators that a loop may use."""
    found: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
