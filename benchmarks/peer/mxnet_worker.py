"""One worker of MXNet's KVStore; runs under the interpreter of MXNet's environment."""

from __future__ import annotations

import json
import sys

import mxnet

from peer.measuring import Settings, iterate


def main(kind: str, size: int, into: str, settings: Settings) -> None:
    store = mxnet.kv.create(kind)
    gradient, weights = mxnet.nd.ones((size,)), mxnet.nd.zeros((size,))
    store.init(0, weights)
    store.set_optimizer(mxnet.optimizer.SGD(learning_rate=1e-6))  # the server updates, as gluon.Trainer asks it to

    def step() -> None:
        store.push(0, gradient)
        store.pull(0, out=weights)
        weights.wait_to_read()

    iterate(step, store.rank, size, settings, into, waits=kind == "dist_sync")


if __name__ == "__main__":
    given = json.loads(sys.argv[4])
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Settings(**given))
