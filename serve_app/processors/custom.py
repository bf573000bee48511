"""Custom processors: classes of a module, an entry point, or a file beside the model.

Only the configuration can name one, never a client.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar, get_type_hints

import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from serve_app.config.problems import nearest, problems_of
from serve_app.config.processor import ENTRY_POINTS, PROCESSOR_OPTIONS, installed_tasks
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.payloads import DTYPES, Embeddings, Media, ModelSignature, Tensors, Texts
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.processor import Cost, Processor

_KEY: Final = "processor.class"
_METHODS: Final = {
    "estimate": 1,
    "preprocess": 1,
    "bucket": 1,
    "pad": 2,
    "example": 2,
    "postprocess": 3,
}
"""What every processor has, and how many arguments it takes."""
_ATTRIBUTES: Final = ("labels", "buckets", "bucket_invariant")
_LONGEST_MESSAGE: Final = 300

_T = TypeVar("_T")

logger = logging.getLogger(__name__)


# --- Finding a class --------------------------------------------------------------------------------------------------


def find_class(name: str | None, task: str, folder: ModelFolder) -> type[Any]:
    """Import a processor's class.

    Args:
        name: ``module:Class`` or ``file.py:Class``; ``None``: an installed package's class for the task.
        folder: Searched for files.

    Raises:
        ConfigError: The class is missing, or cannot be imported; one line with the place and the reason.
    """
    if name is None:
        return _of_entry_point(task)
    place, _, path = name.rpartition(":")
    module = _of_file(place, folder) if place.endswith(".py") else _of_module(place)
    return _class_of(module, path, f"{_KEY}: {place}")


def source_of(cls: type[Any]) -> Path | None:
    """The source file of a class, if any."""
    try:
        file = inspect.getsourcefile(cls)
    except TypeError:
        return None
    return None if file is None else Path(file)


def _of_entry_point(task: str) -> type[Any]:
    found = tuple(entry_points(group=ENTRY_POINTS, name=task))
    if len({point.value for point in found}) > 1:
        listed = " and ".join(sorted(point.value for point in found))
        raise ConfigError((f"task: several packages have a processor for {task}: say {listed} by {_KEY}",))
    if not found:
        guess = nearest(task, (*PROCESSOR_OPTIONS, *installed_tasks()))
        hint = f"did you mean {guess}?" if guess else f"no installed package has a processor for it; name one by {_KEY}"
        raise ConfigError((f"task: unknown task {task}; {hint}",))
    point = found[0]
    return _class_of(_of_module(point.module), point.attr, f"{_KEY}: {point.module}")


def _of_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError((f"{_KEY}: cannot import {name}: {_one_line(error)}",)) from None
        raise ConfigError((f"{_KEY}: there is no module {error.name}; {_advice(error.name)}",)) from None
    except (Exception, SystemExit) as error:  # of the module: whatever it does when it is imported
        raise ConfigError((f"{_KEY}: cannot import {name}: {_one_line(error)}",)) from None


def _advice(module: str) -> str:
    package, _, name = module.rpartition(".")
    if package in sys.modules:
        known = [found.name for found in pkgutil.iter_modules(getattr(sys.modules[package], "__path__", ()))]
        if (guess := nearest(name, known)) is not None:
            return f"did you mean {package}.{guess}?"
    return (
        "install its package where the server runs, or have its folder in PYTHONPATH; a file beside the model is"
        " file.py:Class"
    )


def _of_file(name: str, folder: ModelFolder) -> ModuleType:
    path = folder.find(name)
    if path is None:
        raise ConfigError((f"{_KEY}: there is no file {name} in the model's folder",))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError((f"{_KEY}: {path} cannot be read: {error.strerror}",)) from None
    digest = hashlib.sha256(str(path.resolve()).encode() + b"\0" + content).hexdigest()[:16]
    module_name = f"_serve_app_processor_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    module = ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module  # as dataclasses and type hints need it
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)  # noqa: S102 - leaves no __pycache__ beside the model
    except (Exception, SystemExit) as error:  # of the file: whatever it does
        del sys.modules[module_name]
        raise ConfigError((f"{_KEY}: cannot import {name}: {_one_line(error)}",)) from None
    return module


def _class_of(module: ModuleType, path: str, where: str) -> type[Any]:
    found: Any = module
    for name in path.split("."):
        below = getattr(found, name, None)
        if below is None:
            known = [each for each, value in vars(found).items() if inspect.isclass(value)]
            guess = nearest(name, known)
            raise ConfigError((f"{where} has no {name}" + (f"; did you mean {guess}?" if guess else ""),))
        found = below
    if not inspect.isclass(found):
        raise ConfigError((f"{where}: {path} is a {type(found).__name__}, not a class",))
    return found


def _one_line(error: BaseException) -> str:
    """An exception in one line, with the place where it was raised."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    message = " ".join(str(error).split())
    shown = message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "..."
    return f"{where}{type(error).__name__}" + (f": {shown}" if shown else "")


def _is_ours(filename: str) -> bool:
    return filename.startswith("<frozen") or filename == __file__ or "importlib" in Path(filename).parts


# --- Making a processor of it -----------------------------------------------------------------------------------------


def make_custom(
    cls: type[Any], signature: ModelSignature, folder: ModelFolder, options: Mapping[str, Any]
) -> CustomProcessor:
    """Make a processor from a class: ``cls(signature, folder, ...)``, followed by its options.

    Options are one argument, of the class's pydantic model ``options``, or else keyword arguments.

    Raises:
        ConfigError: An option is wrong, a method is missing, the constructor raises, or the result does not fit the
            model. One line per fault.
    """
    lacking = [name for name in _METHODS if name in _abstract(cls) or not callable(getattr(cls, name, None))]
    if lacking:
        raise ConfigError(tuple(f"{_KEY}: {cls.__name__} has no method {name}{_like(cls, name)}" for name in lacking))
    try:
        arguments, keywords = _options_of(cls, options)
        made = cls(signature, folder, *arguments, **keywords)
        return CustomProcessor(cls, made, signature)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # of the class: whatever it does
        fault = f"{_KEY}: {cls.__name__}(signature, folder, ...) cannot be made: {_one_line(error)}"
        raise ConfigError((fault,)) from None


def _abstract(cls: type[Any]) -> frozenset[str]:
    names: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    return names


def _like(cls: type[Any], name: str) -> str:
    guess = nearest(name, [each for each in vars(cls) if each not in _METHODS])
    return f"; is {guess} meant to be it?" if guess else "; write it, and derive from serve_app.processors.Processor"


def _options_of(cls: type[Any], given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The constructor's further positional and keyword arguments."""
    model = getattr(cls, "options", None)
    if inspect.isclass(model) and issubclass(model, BaseModel):
        strict: Any = None if model.model_config.get("extra") else "forbid"
        checked = _checked(lambda: model.model_validate(given, extra=strict), given, model.model_json_schema)
        return (checked,), {}
    keywords_model, names = _keywords_of(cls)
    known: dict[str, Any] = {"properties": {key: {} for key in names}}
    checked = _checked(lambda: keywords_model.model_validate(given), given, lambda: known)
    keywords = {name: getattr(checked, field) for name, field in names.items() if field in checked.model_fields_set}
    return (), keywords | (checked.model_extra or {})


def _keywords_of(cls: type[Any]) -> tuple[type[BaseModel], dict[str, str]]:
    """A pydantic model of the constructor's further arguments, and the argument for each of its fields."""
    parameters = list(inspect.signature(cls).parameters.values())[2:]
    try:
        hints = get_type_hints(cls.__init__, include_extras=True)
    except Exception:  # names that exist for type checkers only
        hints = {}
    named = [each for each in parameters if each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}]
    names = {each.name: f"option_{number}" for number, each in enumerate(named)}  # some names a model cannot have
    fields: dict[str, Any] = {
        names[each.name]: (
            hints.get(each.name, Any),
            Field(... if each.default is inspect.Parameter.empty else each.default, alias=each.name),
        )
        for each in named
    }
    extra: Any = "allow" if any(each.kind is each.VAR_KEYWORD for each in parameters) else "forbid"
    config = ConfigDict(extra=extra, arbitrary_types_allowed=True)
    model: type[BaseModel] = create_model("Options", __config__=config, **fields)
    return model, names


def _checked(validate: Callable[[], _T], given: Mapping[str, Any], schema: Callable[[], Mapping[str, Any]]) -> _T:
    try:
        return validate()
    except ValidationError as error:
        raise ConfigError(problems_of(error, dict(given), schema(), "processor")) from None


# --- What a processor gives, looked at before anybody relies on it ----------------------------------------------------


def misfit(signature: ModelSignature, tensors: Any) -> str | None:
    """Why tensors do not fit the model, in words, if so.

    Args:
        tensors: From a processor.
    """
    if not isinstance(tensors, dict):
        return f"a {type(tensors).__name__} came, and no dict of arrays by the name of the model's input"
    known = {spec.name: spec for spec in (*signature.inputs, *signature.optional)}
    for spec in signature.inputs:
        if spec.name not in tensors:
            return f"input {spec.name!r} is missing"
    rows: dict[int, str] = {}
    for name, array in tensors.items():
        if name not in known:
            return f"the model has no input {name!r}; it has {', '.join(known)}"
        spec = known[name]
        if not isinstance(array, np.ndarray):
            return f"input {name!r} is a {type(array).__name__}, and no numpy array"
        if array.dtype != DTYPES[spec.datatype]:
            return f"input {name!r} is of dtype {array.dtype}; {spec.datatype} is {DTYPES[spec.datatype]}"
        inner = spec.shape[1:]
        if spec.ranked and (
            array.ndim != len(spec.shape)
            or any(wanted not in {-1, size} for wanted, size in zip(inner, array.shape[1:], strict=True))
        ):
            return f"input {name!r} has shape {list(array.shape)}; the model takes {list(spec.shape)}, rows first"
        if not array.ndim or not len(array):
            return f"input {name!r} has no rows"
        rows[len(array)] = name
    return None if len(rows) < 2 else f"inputs have {' and '.join(map(str, sorted(rows)))} rows"


def plain_answer(answer: Any) -> Any:
    """An answer that can be transferred and encoded: `Embeddings`, or JSON data.

    Arrays become lists; dataclasses and similar become objects.

    Raises:
        TypeError: A value has no JSON form; names its type.
    """
    if isinstance(answer, Embeddings):
        return answer
    return msgspec.to_builtins(answer, enc_hook=_plain, str_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


class CustomProcessor:
    """A processor of a custom class, whose results are checked.

    A method that fails through no fault of the client, or returns wrong data, fails only this request: with
    `RuntimeError` where the caller answers and logs it, with `InferenceFailed` in a router's event loop.

    Args:
        cls: For messages.

    Attributes:
        labels: Of the instance at construction.

    Raises:
        ConfigError: The instance is no processor for this model.
    """

    def __init__(self, cls: type[Any], made: Processor, signature: ModelSignature) -> None:
        self._name = cls.__name__
        self._made = made
        self._signature = signature
        lacking = [name for name in _ATTRIBUTES if not hasattr(made, name)]
        if lacking:
            raise ConfigError(tuple(f"{_KEY}: {self._name} has no {name}{_like(cls, name)}" for name in lacking))
        self.labels: tuple[str, ...] = tuple(made.labels)
        self.buckets: tuple[int, ...] = tuple(made.buckets)
        self.bucket_invariant = bool(made.bucket_invariant)
        faults = tuple(self._faults())
        if not faults and (fault := misfit(signature, made.example(1, self.buckets[0]))) is not None:
            faults = (f"example does not fit the model: {fault}",)
        if faults:
            raise ConfigError(tuple(f"{_KEY}: {self._name}.{fault}" for fault in faults))

    def __repr__(self) -> str:
        return f"<CustomProcessor {self._name}>"

    def _faults(self) -> Iterable[str]:
        if not all(isinstance(label, str) for label in self.labels):
            yield "labels must be texts"
        if not _is_ascending(self.buckets):
            yield f"buckets must be whole numbers from 0 on, ascending, got {self.buckets!r}"
        for name, count in _METHODS.items():
            method = getattr(self._made, name)
            if inspect.iscoroutinefunction(method):
                yield f"{name} is async; it runs in a thread: write def"
                continue
            try:
                inspect.signature(method).bind(*range(count))
            except (TypeError, ValueError):
                yield f"{name}{inspect.signature(method)} cannot be called with {count} arguments, as Processor.{name}"

    def estimate(self, payload: Media | Texts) -> Cost:
        """The class's estimate."""
        return self._in_loop("estimate", self._estimate, payload)

    def _estimate(self, payload: Media | Texts) -> Cost:
        rows, bucket = self._made.estimate(payload)
        if not _is_count(rows) or rows < 1 or bucket not in self.buckets:
            raise RuntimeError(f"{self._name}.estimate gives {rows!r} rows of bucket {bucket!r}")
        return Cost(rows, bucket)

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """The class's tensors of a payload, if they fit the model."""
        tensors = self._call(self._made.preprocess, payload)
        if (fault := misfit(self._signature, tensors)) is not None:
            raise RuntimeError(f"{self._name}.preprocess: {fault}")
        self._call(self._bucket, tensors)  # here, where it would fail this request alone
        return tensors

    def bucket(self, tensors: Tensors) -> int:
        """The class's bucket."""
        return self._in_loop("bucket", self._bucket, tensors)

    def _bucket(self, tensors: Tensors) -> int:
        bucket = self._made.bucket(tensors)
        if bucket not in self.buckets:
            raise RuntimeError(f"{self._name}.bucket gives {bucket!r}, which is none of its buckets")
        return bucket

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """The class's padding, if it still fits the model."""
        padded = self._call(self._made.pad, tensors, bucket)
        if (fault := misfit(self._signature, padded)) is not None:
            raise RuntimeError(f"{self._name}.pad: {fault}")
        return padded

    lengths = Processor.lengths
    cut = Processor.cut

    def example(self, rows: int, bucket: int) -> Tensors:
        """The class's example, if it fits the model."""
        tensors = self._call(self._made.example, rows, bucket)
        if (fault := misfit(self._signature, tensors)) is not None:
            raise RuntimeError(f"{self._name}.example: {fault}")
        return tensors

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors) -> Any:
        """The class's answer, through `plain_answer`."""
        return plain_answer(self._call(self._made.postprocess, payload, outputs, inputs))

    def _in_loop(self, what: str, call: Callable[[Any], _T], argument: Any) -> _T:
        """Call a method where only the server's own errors are answered."""
        try:
            return self._call(call, argument)
        except (InvalidRequest, InferenceFailed):
            raise
        except Exception as error:
            logger.exception("%s.%s failed", self._name, what)
            raise InferenceFailed(f"the model's processor failed to {_VERBS[what]} this request") from error

    @staticmethod
    def _call(call: Callable[..., _T], *arguments: Any) -> _T:
        try:
            return call(*arguments)
        except (InvalidRequest, InferenceFailed):
            raise
        except (Exception, SystemExit) as error:  # none of the server's other errors, and none that ends its process
            raise RuntimeError(_one_line(error)) from error


_VERBS: Final = {"estimate": "estimate", "bucket": "size"}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_ascending(buckets: tuple[Any, ...]) -> bool:
    return bool(buckets) and all(map(_is_count, buckets)) and list(buckets) == sorted(set(buckets))
