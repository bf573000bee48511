"""What a model is warmed up with: samples in files, and what the values of an input may be."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field, field_validator, model_validator

from serve_app.config.files import read_file
from serve_app.config.problems import Location, short_repr, validation_error
from serve_app.config.values import Positive, Section
from serve_app.domain.settings import InputRule, SampleFile, SampleSettings
from serve_app.errors import ConfigError, ServeAppError
from serve_app.payloads import ModelSignature, Tensors

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

    shape: Annotated[tuple[Positive, ...] | None, Field(strict=False)] = None
    """The input's shape without its rows, where the model leaves dimensions open."""

    @model_validator(mode="after")
    def _check(self) -> WarmUpInput:
        faults: list[tuple[Location, str]] = []
        if self.range is not None and self.range[0] > self.range[1]:
            faults.append((("range",), f"the lowest value comes first, got {short_repr(list(self.range))}"))
        if self.range is not None and self.values is not None:
            faults.append((("values",), "range says what the values are; leave one of them out"))
        if self.range is None and self.values is None and self.shape is None:
            faults.append(((), "needs range, values or shape"))
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
    ) -> SampleSettings:
        """Read the samples. Whether they fit the model is checked by `serve_app.backends.samples.make_samples`.

        Args:
            model: The model's name.
            signature: Its tensors.
            decode: Decodes the samples that are requests.
            environ: Environment variables; by default those of this process.

        Raises:
            ConfigError: One line per file that cannot be read.
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
        if problems:
            raise ConfigError(tuple(problems))
        return SampleSettings(tuple(files), {name: each.rule() for name, each in self.inputs.items()})


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
