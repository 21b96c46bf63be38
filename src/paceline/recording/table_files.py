"""Writes tables as files, row by row: CSV, and Parquet where pyarrow is installed.

A file gets its name when it is whole; until then it ends in .part.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from paceline.core.errors import ConfigurationError
from paceline.recording.tables import Columns

PART = ".part"
ROWS_AT_ONCE = 20_000  # of a Parquet file


def replaceable(path: Path, *, force: bool) -> None:
    """ConfigurationError, if there is something that shall stay."""
    if path.is_dir():
        raise ConfigurationError(f"{path}: is a directory; give the name of a file")
    if path.exists() and not path.is_file():  # a device, a pipe
        raise ConfigurationError(f"{path}: cannot be replaced by a file; give another name")
    if path.exists() and not force:
        raise ConfigurationError(f"{path}: is there already; give another name, or --force to replace it")


class TableFiles(ABC):
    """Tables below one directory. `begin` a table, `give` its rows, and `close` all; `abandon` what was not closed."""

    suffix = ""

    def __init__(self, directory: Path, names: tuple[str, ...], *, force: bool) -> None:
        """`names`: of all tables that may come; none of their files may be there yet."""
        self.directory = directory
        self.written: list[Path] = []
        self._open: list[Path] = []
        if directory.exists() and not directory.is_dir():
            raise ConfigurationError(f"{directory}: is a file; give the name of a directory")
        for name in names:
            replaceable(self._path(name), force=force)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ConfigurationError(
                f"{directory}: cannot be written: {problem.strerror}; give another directory"
            ) from None

    def _path(self, name: str) -> Path:
        return self.directory / (name + self.suffix)

    def begin(self, name: str, columns: Columns) -> None:
        part = self._path(name).with_name(self._path(name).name + PART)
        self._open.append(part)
        self._begin(name, part, columns)

    def close(self) -> None:
        self._end()
        for part in self._open:
            self.written.append(part.replace(part.with_name(part.name.removesuffix(PART))))
        self._open.clear()

    def abandon(self) -> None:
        with suppress(OSError):
            self._end()
        for part in self._open:
            part.unlink(missing_ok=True)

    @abstractmethod
    def give(self, name: str, row: tuple[Any, ...]) -> None: ...

    @abstractmethod
    def _begin(self, name: str, part: Path, columns: Columns) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...


class CsvFiles(TableFiles):
    """What is not known is an empty field; numbers are written with all their digits."""

    suffix = ".csv"

    def __init__(self, directory: Path, names: tuple[str, ...], *, force: bool) -> None:
        super().__init__(directory, names, force=force)
        self._files: list[IO[str]] = []
        self._writers: dict[str, Any] = {}

    def _begin(self, name: str, part: Path, columns: Columns) -> None:
        file = part.open("w", newline="", encoding="utf-8")
        self._files.append(file)
        self._writers[name] = csv.writer(file, lineterminator="\n")
        self._writers[name].writerow(columns)

    def give(self, name: str, row: tuple[Any, ...]) -> None:
        self._writers[name].writerow(row)

    def _end(self) -> None:
        while self._files:
            self._files.pop().close()


class ParquetFiles(TableFiles):
    suffix = ".parquet"

    def __init__(self, directory: Path, names: tuple[str, ...], *, force: bool) -> None:
        if find_spec("pyarrow") is None:
            raise ConfigurationError("--parquet needs pyarrow: pip install 'paceline[parquet]'; --csv needs nothing")
        super().__init__(directory, names, force=force)
        self._writers: dict[str, Any] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {}

    def _begin(self, name: str, part: Path, columns: Columns) -> None:
        import pyarrow
        from pyarrow.parquet import ParquetWriter

        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
        schema = pyarrow.schema([(column, kinds[kind]) for column, kind in columns.items()])
        self._writers[name] = ParquetWriter(part, schema)
        self._rows[name] = []

    def give(self, name: str, row: tuple[Any, ...]) -> None:
        self._rows[name].append(row)
        if len(self._rows[name]) >= ROWS_AT_ONCE:
            self._write(name)

    def _write(self, name: str) -> None:
        import pyarrow

        rows, self._rows[name] = self._rows[name], []
        schema = self._writers[name].schema
        columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
        arrays = [pyarrow.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
        self._writers[name].write_table(pyarrow.Table.from_arrays(arrays, schema=schema))

    def _end(self) -> None:
        for name in list(self._writers):
            if self._rows[name]:
                self._write(name)
            self._writers.pop(name).close()
