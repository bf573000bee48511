"""What will be asked: streams in a scenario's words, rates, a trace, or the server's log of requests."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator

from serve_app.config.file import ServeFile, read_document
from serve_app.config.lines import Lines
from serve_app.config.problems import hint, place, problems_of, short_repr
from serve_app.config.values import Section
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app_simulator.scenario import Stream
from serve_app_simulator.scenarios.workload import PRIORITIES, AnyStream
from serve_app_simulator.trace import read_trace

_MOST_RATE = 1e7
_COLUMNS = ("arrival", "model", "class", "rows", "deadline")


class DemandFile(Section):
    """What ``--demand`` reads: a scenario's `workload`, with rates."""

    workload: Annotated[tuple[AnyStream, ...], Field(strict=False)]
    """What arrives; streams may overlap."""

    @field_validator("workload")
    @classmethod
    def _check(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if not given:
            raise ValueError("needs at least one")
        return given


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the demand comes from; several add up.

    Attributes:
        demand: A `DemandFile`.
        rates: ``MODEL=RATE``, requests per second: Poisson, of class ``normal`` with its deadline, of one row.
        logs: The request logs of all routers, which give one trace.
        trace: A CSV file; see `serve_app_simulator.trace`.
    """

    demand: Path | None = None
    rates: Sequence[str] = ()
    logs: Sequence[Path] = ()
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class Demanded:
    """The demand.

    Attributes:
        streams: What arrives.
        models: Names of the models that are asked.
        trace_s: Length of the longest trace, seconds; ``None`` without one.
    """

    streams: tuple[Stream, ...]
    models: tuple[str, ...]
    trace_s: float | None = None


def read_demand(sources: Sources, file: ServeFile, folder: Path) -> Demanded:
    """Read all sources.

    Args:
        file: The server's configuration, whose models may be asked.
        folder: For a trace made of logs; it must exist as long as the demand is used.

    Raises:
        ConfigError: One line per fault, with the remedy.
    """
    names = [model.name for model in file.args.models if model.pool is None]
    timeouts = {priority: settings.timeout_s for priority, settings in file.args.class_settings().items()}
    streams = [*_of_rates(sources.rates, names, timeouts[Priority.NORMAL])]
    if sources.demand is not None:
        streams += _of_file(sources.demand, names, timeouts)
    if sources.logs:
        trace = folder / "log.csv"
        _write_trace(trace, _of_logs(sources.logs, file, names, timeouts))
        streams.append(Stream("trace", path=str(trace)))
    if sources.trace is not None:
        streams.append(Stream("trace", path=str(sources.trace)))
    if not streams:
        raise ConfigError(("no demand is given: add --demand FILE, --rate MODEL=RATE, --log FILE or --trace FILE",))
    asked: set[str] = set()
    longest: float | None = None
    for stream in streams:
        if stream.kind == "trace":
            found = _read_trace(stream.path, names)
            longest = max(longest or 0.0, stream.start_s + float(found.arrival[-1]))
            asked |= {names[at] for at in set(found.model.tolist())}
        else:
            asked |= {stream.model} if stream.model else set(names)
    return Demanded(tuple(streams), tuple(name for name in names if name in asked), longest)


def _of_rates(given: Sequence[str], names: Sequence[str], timeout_s: float) -> Iterator[Stream]:
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = 0.0
        if not (name and 0 < rate <= _MOST_RATE):
            raise ConfigError((f"--rate {text}: must be MODEL=RATE with requests per second above 0, e.g. digits=50",))
        if name not in names:
            raise ConfigError((f"--rate {text}: {_unknown(name, names)}",))
        yield Stream("poisson", model=name, rate=rate, timeout_s=timeout_s)


def _of_file(path: Path, names: Sequence[str], timeouts: Mapping[Priority, float]) -> list[Stream]:
    try:
        document = read_document(path)
        problems: tuple[str, ...] = ()
        try:
            file = DemandFile.model_validate(document)
            problems = tuple(_problems(file, names))
        except ValidationError as error:
            problems = problems_of(error, document, DemandFile.model_json_schema())
        lines = Lines(path.read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(tuple(f"{path}: {problem}" for problem in error.problems)) from None
    if problems:
        raise ConfigError(tuple(f"{path}: {lines.mark(problem)}" for problem in problems))
    return [stream.stream(path.parent, timeouts, 0.0) for stream in file.workload]


def _problems(file: DemandFile, names: Sequence[str]) -> Iterator[str]:
    for number, stream in enumerate(file.workload):
        if stream.model_name and stream.model_name not in names:
            yield f"{place(('workload', number, 'model'))}: {_unknown(stream.model_name, names)}"
        if getattr(stream, "load", None) is not None:
            where = place(("workload", number, "load"))
            yield f"{where}: is a part of what replicas can do, and their number is not known yet; say rate"


def _unknown(name: str, names: Sequence[str]) -> str:
    return f"the configuration has no model {short_repr(name)} with replicas of its own; {hint(name, names)}"


def _read_trace(path: str, names: Collection[str]) -> Any:
    try:
        return read_trace(path, names)
    except ConfigError as error:
        (problem,) = error.problems
        if "column is missing" in problem:
            problem += f"; a trace needs {', '.join(_COLUMNS)}, e.g. from the server's log: serve-app plan --log"
        raise ConfigError((problem,)) from None


@dataclass(frozen=True, slots=True)
class _Logged:
    """A request in a log; times are seconds."""

    sent: float
    model: str
    priority: Priority
    rows: int | None
    timeout_s: float


def _of_logs(
    paths: Sequence[Path], file: ServeFile, names: Sequence[str], timeouts: Mapping[Priority, float]
) -> list[_Logged]:
    """The requests of all logs by their time. Logs hold no deadlines: each has its class's."""
    sample = file.args.logging.sample
    if sample < 1.0:
        raise ConfigError(
            (f"--log: logging.sample is {sample:g}, so answered requests are missing; set it to 1 and record again",)
        )
    found: list[_Logged] = []
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError(("--log: the same file is given twice, so its requests would count twice",))
    for path in paths:
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    try:
                        entry = _read_line(json.loads(line), names, timeouts)
                    except (ValueError, KeyError, TypeError, AttributeError):
                        raise ConfigError((f"{path}: line {number}: is no line of a request log",)) from None
                    except ConfigError as error:
                        raise ConfigError((f"{path}: line {number}: {error.problems[0]}",)) from None
                    found += [] if entry is None else [entry]
        except OSError as error:
            raise ConfigError((f"{path}: cannot be read: {error.strerror}",)) from None
        except UnicodeDecodeError:
            raise ConfigError((f"{path}: is not UTF-8 text",)) from None
    if not found:
        raise ConfigError((f"--log: no request to a model with replicas of its own; there are: {', '.join(names)}",))
    usual = {
        name: round(median([each.rows for each in found if each.model == name and each.rows] or [1])) for name in names
    }
    found = [replace(each, rows=usual[each.model]) if each.rows is None else each for each in found]
    return sorted(found, key=lambda each: each.sent)


def _read_line(line: Any, names: Sequence[str], timeouts: Mapping[Priority, float]) -> _Logged | None:
    """The request of a line; ``None``: it ran nothing here. One refused before it was read has no rows yet."""
    left_out = sum(line.get("suppressed", {}).values()) + (line.get("lost") or 0)
    if left_out:
        raise ConfigError((f"{left_out} requests are missing here; raise logging.lines_per_s and record again",))
    if "outcome" not in line and "time" in line:
        return None
    model = line["model"]
    if model not in names or line.get("cache") or line.get("listener") == "shadow":
        return None
    priority = PRIORITIES.get(line.get("class", ""), Priority.NORMAL)
    ended = datetime.fromisoformat(line["time"]).timestamp()
    took_s, rows = line.get("total_ms", 0.0) / 1000, line.get("rows")
    if not isfinite(took_s) or not (rows is None or (isinstance(rows, int) and rows > 0)):
        raise ValueError("no time or rows")
    return _Logged(ended - took_s, model, priority, rows, timeouts[priority])


def _write_trace(path: Path, requests: Sequence[_Logged]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(_COLUMNS)
        first = requests[0].sent
        for each in requests:
            lines.writerow((each.sent - first, each.model, each.priority.label, each.rows, each.timeout_s))
