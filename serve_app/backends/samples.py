"""Inputs that a model can run: from configured samples and ranges, or made up.

Warm-up, profiles, the self-test and experiments at load share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from serve_app.backends.sample_settings import problems_of
from serve_app.backends.synthetic_inputs import SYNTHETIC_INPUTS, SyntheticInput, filled, has_rows, shape_of
from serve_app.backends.warm_up import MakeInputs
from serve_app.domain.settings import InputRule, SampleSettings
from serve_app.errors import ConfigError
from serve_app.payloads import DTYPES, ModelSignature, Tensors, TensorSpec

_SEED: Final = 0
_FREE_SIZES: Final = (1, 16)
"""Sizes to try for dimensions that may vary and of which nothing is said: a convolution does not fit into 1."""


class Samples:
    """Inputs of one model, checked against its signature. Made by `make_samples`.

    Args:
        pool: Rows of configured samples, by input; all of one kind. Without rows, one sample each.
        rules: By input.
        rows: Whether a variable first dimension is the rows of a batch.
    """

    def __init__(
        self, signature: ModelSignature, pool: Sequence[Tensors], rules: Mapping[str, InputRule], *, rows: bool = True
    ) -> None:
        self._signature = signature
        self._pool = tuple(pool)
        self._rules = dict(rules)
        self._rows = rows

    @property
    def advice(self) -> str:
        """The remedy if the model runs none of them."""
        if self._pool or self._rules:
            return "the inputs that warm_up configures are not what it takes: mend them"
        return "give inputs that it takes in the model's warm_up: samples, or a range or values for each input"

    def candidates(self) -> Iterator[MakeInputs]:
        """Ways to make inputs, the most likely first. They differ only in what is not configured.

        Each makes ``rows`` rows, of size ``bucket`` where a dimension varies (0: a default size). Configured samples
        are repeated up to ``rows``.
        """
        own = [spec for spec in self._signature.inputs if not self._is_given(spec)]
        different: dict[tuple[object, ...], SyntheticInput] = {}
        for filling in SYNTHETIC_INPUTS:
            different.setdefault(tuple(filling.of(spec.datatype) for spec in own), filling)
        for free_size in _FREE_SIZES if self._may_vary() else _FREE_SIZES[:1]:
            for filling in different.values():
                yield self._maker(filling, free_size)

    def draw(self, rows: int, seed: int, like: Tensors | None = None) -> Tensors:
        """Rows that differ from each other like those of requests. Deterministic for a seed.

        Each configured sample row is used before one repeats; configured ranges and values are drawn from. Other
        inputs: floats from 0 to 1, integers 0 or 1, booleans, texts ``"0"`` or ``"1"``. A model may refuse those: run
        them before concluding anything.

        Args:
            rows: At least 1. Inputs without rows get one sample.
            like: Inputs that the model has run, for sizes that are not configured; default 1.
        """
        rng = np.random.default_rng(seed)
        sample = self._pool[rng.integers(len(self._pool))] if self._pool else {}
        order: npt.NDArray[np.intp] | None = None  # one for all inputs: what belongs together stays together
        tensors: Tensors = {}
        for spec in self._signature.inputs:
            rule = self._rules.get(spec.name, _NO_RULE)
            if spec.name not in sample:
                drawn = rule if rule.says_values else _own_rule(spec)
                inner = rule.shape
                if inner is None and like is not None:
                    inner = like[spec.name].shape[1 if has_rows(spec, rows=self._rows) else 0 :]
                shape = shape_of(spec, rows, inner, batched=self._rows)
                tensors[spec.name] = _random(rng, spec, drawn, shape)
                continue
            array = sample[spec.name]
            if has_rows(spec, rows=self._rows):
                if order is None:
                    turns = range(-(-rows // len(array)))
                    order = np.concatenate([rng.permutation(len(array)) for _ in turns])[:rows]
                array = array[order]
            tensors[spec.name] = array
        return tensors

    def _maker(self, filling: SyntheticInput, free_size: int) -> MakeInputs:
        def make(rows: int, bucket: int) -> Tensors:
            rng = np.random.default_rng(_SEED)
            sample = self._pool[0] if self._pool else {}
            tensors: Tensors = {}
            for spec in self._signature.inputs:
                rule = self._rules.get(spec.name, _NO_RULE)
                if spec.name in sample:
                    array = sample[spec.name]
                    repeated = has_rows(spec, rows=self._rows)
                    tensors[spec.name] = array[np.arange(rows) % len(array)] if repeated else array
                    continue
                shape = shape_of(spec, rows, rule.shape, bucket or free_size, batched=self._rows)
                tensors[spec.name] = (
                    _random(rng, spec, rule, shape) if rule.says_values else filled(spec, shape, filling)
                )
            return tensors

        return make

    def _is_sampled(self, spec: TensorSpec) -> bool:
        return any(spec.name in sample for sample in self._pool)

    @property
    def given(self) -> tuple[str, ...]:
        """The inputs whose values are configured."""
        return tuple(spec.name for spec in self._signature.inputs if self._is_given(spec))

    def _is_given(self, spec: TensorSpec) -> bool:
        return self._is_sampled(spec) or self._rules.get(spec.name, _NO_RULE).says_values

    def _may_vary(self) -> bool:
        """Whether an input has a dimension of unconfigured size besides its rows."""
        unsized = [
            spec
            for spec in self._signature.inputs
            if self._rules.get(spec.name, _NO_RULE).shape is None and not self._is_sampled(spec)
        ]
        return any(
            size < 0 for spec in unsized for size in (spec.shape[1:] if has_rows(spec, rows=self._rows) else spec.shape)
        )


def make_samples(
    signature: ModelSignature, settings: SampleSettings | None = None, *, model: str, rows: bool = True
) -> Samples:
    """Check the configured samples of a model's inputs.

    Args:
        signature: Its shapes may have rank 0 or a fixed dimension 0: such inputs have no rows.
        rows: Whether a variable first dimension is the rows of a batch. Otherwise one sample runs unchanged.

    Raises:
        ConfigError: A setting does not fit the signature. One line each: model, place, expectation, remedy.
    """
    settings = settings or SampleSettings()
    problems = problems_of(settings, signature, rows=rows)
    if problems:
        raise ConfigError(tuple(f"model {model!r}: warm_up.{problem}" for problem in problems))
    specs = {spec.name: spec for spec in signature.inputs}
    pool = [
        {name: _converted(array, specs[name]) for name, array in sample.tensors.items()} for sample in settings.files
    ]
    return Samples(signature, _joined(pool, specs) if rows and pool else pool, settings.rules, rows=rows)


def _own_rule(spec: TensorSpec) -> InputRule:
    match DTYPES[spec.datatype].kind:
        case "b":
            return InputRule(values=(False, True))
        case "O":
            return InputRule(values=("0", "1"))
        case _:
            return InputRule(limits=(0, 1))


def _random(rng: np.random.Generator, spec: TensorSpec, rule: InputRule, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    dtype = DTYPES[spec.datatype]
    if rule.limits is None:
        choice = np.empty(len(rule.values), dtype=dtype)
        choice[:] = rule.values
        return np.asarray(choice[rng.integers(len(choice), size=shape)], dtype=dtype)
    low, high = rule.limits
    if dtype.kind in "iu":
        whole: npt.NDArray[Any] = np.asarray(rng.integers(int(low), int(high), size=shape, dtype=dtype, endpoint=True))
        return whole
    part = rng.random(size=shape)
    return np.asarray(low * (1.0 - part) + high * part).astype(dtype)


def _joined(samples: Sequence[Tensors], specs: Mapping[str, TensorSpec]) -> list[Tensors]:
    """One sample with the rows of all. Inputs without rows come from the first."""
    first = samples[0]
    return [
        {
            name: np.concatenate([sample[name] for sample in samples]) if has_rows(specs[name]) else first[name]
            for name in first
        }
    ]


def _converted(array: npt.NDArray[Any], spec: TensorSpec) -> npt.NDArray[Any]:
    dtype = DTYPES[spec.datatype]
    return array.view(dtype) if array.dtype.kind == "V" else array.astype(dtype, copy=False)


_NO_RULE: Final = InputRule()
