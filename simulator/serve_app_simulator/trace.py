"""Traces: recorded arrivals in a CSV file.

The first line names the columns, in any order; further columns are ignored.

    arrival    when the client sent it, seconds from the start of the trace, 0 or more; never less than a line above
    model      name of a model of the scenario
    class      high, normal or low
    rows       rows it adds to a batch, a whole number of at least 1
    deadline   seconds that it may take, counted from its arrival; above 0
    bucket     optional: its cost bucket, a whole number of at least 0
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt

from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError

_COLUMNS = ("arrival", "model", "class", "rows", "deadline")
_MOST = (1 << 31) - 1
_CLASSES = {priority.label: int(priority) for priority in Priority}


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as columns of equal length, ascending in ``arrival``.

    Attributes:
        arrival: Seconds from the start of the trace.
        timeout_s: Seconds that each may take.
        model: Place among the models that were asked for.
        priority: The class's number.
        rows: Rows it adds to a batch.
        bucket: Its cost bucket.
    """

    arrival: npt.NDArray[np.float64]
    timeout_s: npt.NDArray[np.float64]
    model: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    bucket: npt.NDArray[np.int64]


def read_trace(path: str | Path, models: Collection[str]) -> Trace:
    """Read a CSV file in UTF-8, as the module's docstring describes it, with requests to these models.

    Raises:
        ConfigError: The file cannot be read or is wrong; the message names the file, the first wrong line (the one
            with the columns' names is line 1) and its column.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return _Reader(str(path), models).read(file)
    except OSError as error:
        raise ConfigError((f"trace {path}: cannot be read: {error.strerror}",)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError((f"trace {path}: is not a CSV file in UTF-8: {error}",)) from None


class _Reader:
    def __init__(self, path: str, models: Collection[str]) -> None:
        self._path = path
        self._models = {name: place for place, name in enumerate(models)}
        self._line = 1

    def read(self, file: Iterable[str]) -> Trace:
        lines = csv.reader(file)
        header = next(lines, None)
        if header is None:
            raise ConfigError((f"trace {self._path}: is empty; its first line names the columns",))
        names = [name.strip() for name in header]
        for column in _COLUMNS:
            if column not in names:
                raise self._wrong(column, f"this column is missing; there are: {', '.join(names)}")
        places = {column: names.index(column) for column in _COLUMNS}
        bucket_at = names.index("bucket") if "bucket" in names else None
        columns: tuple[list[float], ...] = ([], [], [], [], [], [])
        last = 0.0
        for cells in lines:
            self._line = lines.line_num
            if not cells:
                continue
            if len(cells) < len(names):
                raise self._wrong(names[len(cells)], f"the line ends before it: {len(cells)} of {len(names)} values")
            arrival = self._number("arrival", cells[places["arrival"]])
            if arrival < last:
                raise self._wrong("arrival", f"time runs backwards: {arrival:g} after {last:g}")
            last = arrival
            timeout_s = self._number("deadline", cells[places["deadline"]])
            if timeout_s <= 0.0:
                raise self._wrong("deadline", f"must be above 0 seconds after the arrival, got {timeout_s:g}")
            row = (
                arrival,
                timeout_s,
                self._one_of("model", cells[places["model"]], self._models),
                self._one_of("class", cells[places["class"]], _CLASSES),
                self._whole("rows", cells[places["rows"]], 1),
                0 if bucket_at is None else self._whole("bucket", cells[bucket_at], 0),
            )
            for values, value in zip(columns, row, strict=True):
                values.append(value)
        if not columns[0]:
            raise ConfigError((f"trace {self._path}: holds no request",))
        return Trace(
            np.array(columns[0], dtype=np.float64),
            np.array(columns[1], dtype=np.float64),
            *(np.array(values, dtype=np.int64) for values in columns[2:]),
        )

    def _wrong(self, column: str, what: str) -> ConfigError:
        return ConfigError((f"trace {self._path}, line {self._line}, column {column}: {what}",))

    def _number(self, column: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self._wrong(column, f"{text!r} is not a number of seconds") from None
        if not isfinite(value) or value < 0.0:
            raise self._wrong(column, f"must be a number of seconds from 0 up, got {text!r}")
        return value

    def _whole(self, column: str, text: str, least: int) -> int:
        try:
            value = int(text)
        except ValueError:
            raise self._wrong(column, f"{text!r} is not a whole number") from None
        if value < least:
            raise self._wrong(column, f"must be at least {least}, got {value}")
        if value > _MOST:
            raise self._wrong(column, f"must be at most {_MOST}, got {value}")
        return value

    def _one_of(self, column: str, text: str, known: dict[str, int]) -> int:
        place = known.get(text.strip())
        if place is None:
            raise self._wrong(column, f"unknown {column} {text.strip()!r}; there are: {', '.join(known)}")
        return place
