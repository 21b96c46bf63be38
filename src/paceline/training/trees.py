"""Nested states, such as an optimizer's state_dict, as JSON and named tensors, and back: loading one runs no code.

Numbers, strings, None, lists, tuples, dictionaries, tensors, NumPy arrays and bytes can be kept. A tuple stays one, and
a key that is a number stays a number, so that what comes back equals what was kept.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.errors import ConfigurationError


def taken_apart(tree: Any, name: str = "state") -> tuple[Any, dict[str, Tensor]]:
    """What JSON can hold, and copies of all tensors in it, by name. `name`: of the whole, for a message."""
    tensors: dict[str, Tensor] = {}

    def apart(value: Any, path: str) -> Any:
        match value:
            case np.generic():  # some are numbers of Python, too
                return apart(value.item(), path)
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else {"float": str(value)}
            case Tensor():
                tensors[path] = value.detach().to("cpu", copy=True).contiguous()
                return {"tensor": path}
            case np.ndarray() if value.dtype.kind in "iufb":
                # Not all of NumPy's types are torch's.
                wide = value.astype(np.int64 if value.dtype.kind in "iu" else value.dtype)
                tensors[path] = torch.from_numpy(np.ascontiguousarray(wide).copy())
                return {"array": path, "type": value.dtype.str}
            case bytes():
                return {"bytes": base64.b64encode(value).decode()}
            case list() | tuple():
                parts = [apart(part, f"{path}/{number}") for number, part in enumerate(value)]
                return parts if isinstance(value, list) else {"tuple": parts}
            case Mapping():
                return {
                    "dict": [[apart(key, path), apart(part, f"{path}/{key}")] for key, part in value.items()],
                }
            case _:
                raise ConfigurationError(
                    f"{path} is a {type(value).__name__}, which a checkpoint cannot hold: only numbers, strings, lists,"
                    " tuples, dictionaries, tensors and arrays"
                )

    return apart(tree, name), tensors


def put_together(parts: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse."""
    match parts:
        case {"float": text}:
            return float(text)
        case {"tensor": path}:
            return tensors[path]
        case {"array": path, "type": kind}:
            return tensors[path].numpy().astype(kind)
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"tuple": values}:
            return tuple(put_together(value, tensors) for value in values)
        case {"dict": pairs}:
            return {put_together(key, tensors): put_together(value, tensors) for key, value in pairs}
        case list():
            return [put_together(value, tensors) for value in parts]
        case _:
            return parts
