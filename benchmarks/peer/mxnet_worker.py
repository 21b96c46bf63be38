"""One worker of MXNet's KVStore; runs under the interpreter of MXNet's environment."""

from __future__ import annotations

import json
import sys

import mxnet

from peer.measuring import Settings, case, iterate


def main(name: str, kind: str, into: str, settings: Settings) -> None:
    store = mxnet.kv.create(kind)
    store.set_optimizer(mxnet.optimizer.SGD(learning_rate=1e-6))  # the server updates, as gluon.Trainer asks it to
    for size in settings.sizes:
        gradient, weights = mxnet.nd.ones((size,)), mxnet.nd.zeros((size,))
        store.init(str(size), weights)

        def step(key=str(size), gradient=gradient, weights=weights) -> None:
            store.push(key, gradient)
            store.pull(key, out=weights)
            weights.wait_to_read()

        iterate(step, store.rank, size, settings, case(into, name, size), waits=kind == "dist_sync")


if __name__ == "__main__":
    main(*sys.argv[1:4], Settings(**json.loads(sys.argv[4])))
