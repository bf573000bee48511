"""Settings of warm-up inputs: samples in files, and values of inputs."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from serve_app.config.files import read_file
from serve_app.config.problems import Location, short_repr, validation_error
from serve_app.config.values import Positive, Section
from serve_app.domain.settings import InputRule, SampleFile, SampleSettings
from serve_app.errors import ConfigError, ServeAppError
from serve_app.payloads import DTYPES, ModelSignature, Tensors, TensorSpec

DecodeRequest: TypeAlias = Callable[[str, ModelSignature, bytes], Tensors]
"""Decodes the JSON body of a V2 infer request: of the model of that name and signature."""

_ARRAYS, _REQUEST = ".npz", ".json"
_ONE_ARRAY = b"\x93NUMPY"

Finite = Annotated[int, Field()] | Annotated[float, Field(allow_inf_nan=False)]


class WarmUpInput(Section):
    """What one input of a model holds while it warms up."""

    range: Annotated[tuple[Finite, Finite] | None, Field(strict=False)] = None
    """Lowest and highest value; integers include both. Drawn at random, the same at every start."""

    values: Annotated[tuple[bool | int | float | str, ...] | None, Field(strict=False, min_length=1)] = None
    """Values to choose from, at random, the same at every start. The only way for texts and booleans."""

    file: str | None = Field(default=None, min_length=1)
    """File of raw values, row after row, as V2's binary tensors hold them. Located as the model's `path` is."""

    shape: Annotated[tuple[Positive, ...] | None, Field(strict=False)] = None
    """The input's shape without its rows, where the model leaves dimensions open."""

    @model_validator(mode="after")
    def _check(self) -> WarmUpInput:
        faults: list[tuple[Location, str]] = []
        if self.range is not None and self.range[0] > self.range[1]:
            faults.append((("range",), f"the lowest value comes first, got {short_repr(list(self.range))}"))
        given = [key for key in ("range", "values", "file") if getattr(self, key) is not None]
        faults += [((key,), f"{given[0]} says what the values are; leave one of them out") for key in given[1:]]
        if not given and self.shape is None:
            faults.append(((), "needs range, values, file or shape"))
        if faults:
            raise validation_error(faults)
        return self

    def rule(self) -> InputRule:
        """The values for the layers below."""
        return InputRule(self.range, self.values or (), self.shape)


class WarmUpConfig(Section):
    """Inputs that a model is known to run. What is not said is filled with values of our own."""

    samples: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Files, each located as `path` is: `.npz` with arrays by input name (axis 0 is rows), or `.json` with the body
    of a V2 infer request. Their rows are repeated up to the size of a batch."""

    inputs: dict[str, WarmUpInput] = Field(default_factory=dict)
    """By the name of an input: what it holds, where no sample says it."""

    @field_validator("samples")
    @classmethod
    def _check_samples(cls, samples: tuple[str, ...]) -> tuple[str, ...]:
        for path in samples:
            if not path.endswith((_ARRAYS, _REQUEST)):
                raise ValueError(
                    f"{short_repr(path)} must end with {_ARRAYS} (arrays) or {_REQUEST} (a V2 infer request)"
                )
        return samples

    def read(
        self,
        model: str,
        signature: ModelSignature,
        decode: DecodeRequest,
        environ: Mapping[str, str] | None = None,
        *,
        rows: bool = True,
    ) -> SampleSettings:
        """Read the samples. `serve_app.backends.samples.make_samples` checks that they fit the model.

        Args:
            decode: Decodes samples in the form of requests.
            environ: Default: this process's.
            rows: Whether a variable first dimension is the rows of a batch.

        Raises:
            ConfigError: One line per unreadable file.
        """
        files: list[SampleFile] = []
        problems: list[str] = []
        for number, path in enumerate(self.samples):
            place = f"samples[{number}] ({path})"
            try:
                content = read_file(path, environ)
                tensors = _arrays(content) if path.endswith(_ARRAYS) else decode(model, signature, content)
            except ConfigError as error:
                problems += [f"model {model!r}: warm_up.{place}: {problem}" for problem in error.problems]
            except ServeAppError as error:
                problems.append(f"model {model!r}: warm_up.{place}: {error.message}")
            else:
                files.append(SampleFile(place, tensors))
        raw: Tensors = {}
        specs = {spec.name: spec for spec in signature.inputs}
        for name, each in self.inputs.items():
            if each.file is None or name not in specs:
                continue
            place = f"inputs.{name}.file ({each.file})"
            try:
                raw[name] = _raw(read_file(each.file, environ), specs[name], each.shape, rows=rows)
            except ConfigError as error:
                problems += [f"model {model!r}: warm_up.{place}: {problem}" for problem in error.problems]
        if problems:
            raise ConfigError(tuple(problems))
        if raw:
            files.append(SampleFile(f"inputs ({', '.join(raw)})", raw))
        rules = {name: each.rule() for name, each in self.inputs.items() if name not in raw}
        return SampleSettings(tuple(files), rules)


def _raw(content: bytes, spec: TensorSpec, given: tuple[int, ...] | None, *, rows: bool) -> npt.NDArray[Any]:
    """An input's values in a raw file.

    Args:
        given: Its shape without rows; ``None`` for the model's.
        rows: Whether a variable first dimension is the rows of a batch.

    Raises:
        ConfigError: The content is not values of whole rows.
    """
    leads = rows and bool(spec.shape) and spec.shape[0] < 0
    inner = given if given is not None else spec.shape[1:] if leads else spec.shape
    if any(size < 0 for size in inner):
        raise ConfigError((f"say the shape of input {spec.name!r}, which is {list(inner)}",))
    values = _texts(content) if spec.datatype == "BYTES" else None
    if values is None:
        dtype = np.dtype(DTYPES[spec.datatype])
        if len(content) % dtype.itemsize:
            raise ConfigError((f"{len(content)} bytes are no whole values of {spec.datatype}",))
        values = np.frombuffer(content, dtype)
    size = math.prod(inner)
    if not size or len(values) % size or not len(values) or (not leads and len(values) != size):
        raise ConfigError((f"{len(values)} values are no whole {'rows' if leads else 'tensor'} of {list(inner)}",))
    return values.reshape((-1, *inner) if leads else inner)


def _texts(content: bytes) -> npt.NDArray[Any]:
    """Texts, each after its 4-byte length. Raises `ConfigError` if truncated or no text."""
    texts: list[str] = []
    at = 0
    while at < len(content):
        end = at + 4 + int.from_bytes(content[at : at + 4], "little")
        if end > len(content) or at + 4 > len(content):
            raise ConfigError((f"ends inside of text {len(texts)}; each has 4 bytes of length before it",))
        try:
            texts.append(content[at + 4 : end].decode())
        except UnicodeDecodeError:
            raise ConfigError((f"text {len(texts)} is not UTF-8",)) from None
        at = end
    values = np.empty(len(texts), dtype=np.object_)
    values[:] = texts
    return values


def _arrays(content: bytes) -> Tensors:
    if content.startswith(_ONE_ARRAY):
        raise ConfigError(("is one array, not arrays by name; write it with numpy.savez",))
    try:
        stored = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        raise ConfigError(("is not a file that numpy.savez writes",)) from None
    try:
        with stored:
            return dict(stored)
    except ValueError as error:  # what numpy says of objects, which it would unpickle
        if "allow_pickle" not in str(error):
            raise ConfigError(("is not a file that numpy.savez writes",)) from None
        raise ConfigError(("holds Python objects; save texts as numpy's str, numbers as numbers",)) from None
    except (OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile):
        raise ConfigError(("is broken; write it again with numpy.savez",)) from None
