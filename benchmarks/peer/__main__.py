"""Measures one peer in this process: `python -m peer MODULE FUNCTION SETTINGS ROWS`, as benchmarks/peers.py does."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from peer.measuring import Settings


def main(module: str, function: str, settings: str, rows: str) -> None:
    measure = getattr(importlib.import_module(f"peer.{module}"), function)
    with Path(rows).open("a") as lines:
        for row in measure(Settings.read(Path(settings))):
            print(json.dumps(asdict(row)), file=lines, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
