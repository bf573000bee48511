"""Settings of a model's plain tensors: labels of outputs, and axes of inputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field

from serve_app.config.problems import short_repr

Labels: TypeAlias = Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | Annotated[str, Field(min_length=1)]
"""Names by index, or the name of a file beside the model that holds one per line."""

LabelsByOutput: TypeAlias = dict[str, Labels]
Format: TypeAlias = Literal["NCHW", "NHWC"]
FormatByInput: TypeAlias = dict[str, Format]


def checked_labels(given: Any) -> Any:
    """Check a value of ``labels``. Raises ValueError with one line."""
    for place, each in given.items() if isinstance(given, dict) else (("", given),):
        at = f"{place}: " if place else ""
        if isinstance(each, list | tuple):
            wrong = next((name for name in each if not isinstance(name, str)), None)
            if wrong is not None:
                raise ValueError(f"{at}every label must be text, got {short_repr(wrong)}; write it in quotes")
        elif not isinstance(each, str):
            forms = "a list or the name of a file" + ("" if place else ", or a mapping from outputs to these")
            raise ValueError(f"{at}must be {forms}, got {short_repr(each)}")  # noqa: TRY004 - pydantic's own
        if not each:
            raise ValueError(f"{at}needs at least one label; leave it out for none")
    return given


def checked_format(given: Any) -> Any:
    """Check a value of ``format``. Raises ValueError with one line."""
    formats = get_args(Format)
    for place, each in given.items() if isinstance(given, dict) else (("", given),):
        if each not in formats:
            forms = " or ".join(formats) + ("" if place else ", or a mapping from inputs to these")
            raise ValueError(f"{f'{place}: ' if place else ''}must be {forms}, got {short_repr(each)}")
    return given


def label_files(given: Labels | LabelsByOutput | None) -> tuple[str, ...]:
    """Files of the model's folder that ``labels`` names."""
    named = given.values() if isinstance(given, dict) else (given,)
    return tuple(name for name in named if isinstance(name, str))
