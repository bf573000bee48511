"""TorchScript: self-contained programs. They declare the names of `forward`'s arguments, but not their tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rowproof.result import RowProof
from serve_app.backends.kind import ModelFile
from serve_app.backends.pytorch.archive import opened
from serve_app.backends.pytorch.failure import describe_failure
from serve_app.backends.pytorch.opened import Opened, RowRange
from serve_app.backends.pytorch.settings import TensorOptions, TorchScriptOptions
from serve_app.backends.pytorch.tensors import import_torch
from serve_app.errors import ConfigError
from serve_app.payloads import DATATYPES, ModelSignature, TensorSpec

_SOURCES = ("/constants.pkl", "/code/")


def inspect_script(model_file: Path, model: str, options: TorchScriptOptions) -> ModelFile:
    """Check a file without PyTorch; the options declare its tensors.

    Raises:
        ConfigError: The file is no TorchScript, or the options name no output.
    """
    with opened(model_file, model=model) as archive:
        names = [f"/{name.partition('/')[2]}" for name in archive.namelist()]
    if not all(any(name.startswith(source) for name in names) for source in _SOURCES):
        hint = "weights without a program, as torch.save writes them, cannot be served: use torch.export or torch.jit"
        raise ConfigError((f"model {model!r}: {model_file} is no TorchScript; {hint}",))
    if not options.outputs:
        hint = "backend_options must, e.g. outputs: {y: {dtype: float32, shape: [-1, 4]}}, and inputs likewise"
        raise ConfigError((f"model {model!r}: a TorchScript file does not say what its tensors are: {hint}",))
    return ModelFile(_signature(options), _prove)


def open_script(model_file: Path, model: str, options: TorchScriptOptions, device: str) -> Opened:
    """Load a model on a device. Raises what `inspect_script` raises.

    Raises:
        ConfigError: PyTorch cannot load it, or `forward` does not match the options.
    """
    declared = inspect_script(model_file, model, options).signature
    torch = import_torch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of all that is TorchScript
            module = torch.jit.load(str(model_file), map_location=device).eval()
        schema, writes = module.forward.schema, _writes(module.forward.inlined_graph)
    except Exception as error:  # PyTorch's errors share no base but Exception
        raise ConfigError((f"model {model!r}: {model_file} cannot be loaded: {describe_failure(error)}",)) from error
    try:
        passed = _passed([spec.name for spec in declared.inputs], schema.arguments[1:])
        _check_returned([spec.name for spec in declared.outputs], schema.returns[0].type)
    except ValueError as error:
        raise ConfigError((f"model {model!r}: backend_options.{error}",)) from error
    names = [spec.name for spec in declared.outputs]
    return Opened(declared, partial(_run, module, passed, names), lambda _: RowRange(), writes, _free)


def _signature(options: TorchScriptOptions) -> ModelSignature:
    def specs(tensors: Mapping[str, TensorOptions]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, DATATYPES[each.dtype], each.shape) for name, each in tensors.items())

    return ModelSignature(specs(options.inputs), specs(options.outputs))


def _prove(_: Mapping[str, int]) -> RowProof:
    return RowProof(False, "the rows of a TorchScript model are not proven to be independent: torch.export's can be")


def _passed(names: Sequence[str], arguments: Sequence[Any]) -> dict[str, str]:
    """The input to pass for each argument."""
    taken = [argument.name for argument in arguments]
    takes = f"forward takes {', '.join(map(_shown, arguments)) or 'nothing'}"
    strange = [name for name in names if name not in taken]
    if strange and len(strange) < len(names):
        raise ValueError(f"inputs: {', '.join(strange)}: no argument of that name, while others have one; {takes}")
    if len(names) > len(taken):
        raise ValueError(f"inputs: there are more than arguments; {takes}")
    passed = dict(zip(taken, names, strict=False)) if strange else {name: name for name in names}
    for argument in arguments:
        if argument.name in passed:
            if str(argument.type) not in {"Tensor", "Optional[Tensor]"}:
                raise ValueError(f"inputs: {passed[argument.name]}: the argument is no tensor; {takes}")
        elif not argument.has_default_value():
            raise ValueError(f"inputs: there is none for {argument.name}; {takes}")
    return passed


def _shown(argument: Any) -> str:
    default = f" = {argument.default_value}" if argument.has_default_value() else ""
    return f"{argument.name}: {argument.type}{default}"


def _check_returned(names: Sequence[str], returned: Any) -> None:
    """Compare the options with `forward`'s return type, as far as it is declared."""
    kind = returned.kind()
    if kind == "TupleType":
        parts = returned.elements()
    elif kind in {"DictType", "ListType"}:
        parts = [returned.getValueType() if kind == "DictType" else returned.getElementType()]
    else:
        parts = [returned]
    if any(part.kind() != "TensorType" for part in parts):
        raise ValueError(f"outputs: forward returns {returned}, and not tensors, or a tuple, list or dict of them")
    if kind in {"TupleType", "TensorType"} and len(parts) != len(names):
        raise ValueError(f"outputs: there are {len(names)}, and forward returns {len(parts)}")


def _run(module: Any, passed: Mapping[str, str], names: Sequence[str], inputs: Mapping[str, Any]) -> Sequence[Any]:
    answer = module(**{argument: inputs[name] for argument, name in passed.items()})
    if isinstance(answer, dict):
        if missing := [name for name in names if name not in answer]:
            raise ValueError(f"it returned no {', '.join(missing)}, only {', '.join(map(str, answer))}")
        return [answer[name] for name in names]
    if not isinstance(answer, list | tuple):
        return [answer]
    if len(answer) != len(names):
        raise ValueError(f"it returned {len(answer)} tensors, and {len(names)} are declared")
    return answer


def _free() -> None:
    """Do nothing: a TorchScript module is freed with its last reference."""


def _writes(block: Any) -> bool:
    """Whether a graph may write to foreign memory: any node not known to only read."""
    return any(not _only_reads(node) or any(map(_writes, node.blocks())) for node in block.nodes())


def _only_reads(node: Any) -> bool:
    namespace, _, name = node.kind().partition("::")
    if namespace == "aten":
        return "!" not in node.schema()  # marks what an operator writes to
    return namespace == "prim" and name not in {"CallFunction", "CallMethod", "fork", "PythonOp"}
