"""Programs of ``torch.export``: graphs with names and shapes of their tensors."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from rowproof.aten import prove_rows
from rowproof.result import RowProof
from rowproof.sizes import symbol_of, text_of
from serve_app.backends.graph_ends import Made, applied_function
from serve_app.backends.kind import BackendOptions, ModelFile
from serve_app.backends.pytorch.archive import opened
from serve_app.backends.pytorch.failure import describe_failure
from serve_app.backends.pytorch.leftovers import drop_leftovers, generated_code
from serve_app.backends.pytorch.opened import Opened, RowRange
from serve_app.backends.pytorch.tensors import import_torch
from serve_app.errors import ConfigError
from serve_app.payloads import DATATYPES, GraphEnds, ModelSignature, TensorSpec

_FUNCTIONS = {"softmax": "softmax", "_softmax": "softmax", "sigmoid": "sigmoid"}
_KEEPING = frozenset(
    {"to", "_to_copy", "alias", "clone", "contiguous", "detach", "dropout", "view", "reshape", "flatten", "squeeze"}
    | {"unsqueeze", "clamp"}
)
"""Operators that keep the values of their first input."""
_SCHEMA: Final = 8
"""Major version of the archive's format."""

_GRAPH = re.compile(r"[^/]+/models/model\.json")

_DTYPES: Final = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    34: "uint32",
    35: "uint64",
}
"""The format's numbers of types."""


class Program(NamedTuple):
    """The content of a program's archive.

    Attributes:
        graph: As in the archive.
        ranges: Bounds of each variable size, by symbol.
        outputs: Graph values of the outputs, in the signature's order.
    """

    graph: Mapping[str, Any]
    ranges: Mapping[str, Mapping[str, int | None]]
    declared: ModelSignature
    outputs: tuple[str, ...]


def inspect_program(model_file: Path, model: str, _: BackendOptions) -> ModelFile:
    """Read a file without PyTorch. Raises what `read_program` raises."""
    program = read_program(model_file, model)
    return ModelFile(program.declared, partial(_prove, program))


def open_program(model_file: Path, model: str, device: str) -> Opened:
    """Load a program on a device. Raises what `read_program` raises.

    Raises:
        ConfigError: PyTorch cannot load it.
    """
    read = read_program(model_file, model)
    torch = import_torch()
    try:
        before = set(generated_code(torch))  # of two loads at once, either takes the other's code for its own too
        program = torch.export.load(str(model_file))
        if device != "cpu":
            program = importlib.import_module("torch.export.passes").move_to_device_pass(program, device)
        module = program.module()  # whose graph also copies back what the program gives of its inputs
        run = _runner(torch, program, module)
        writes = any(_may_write(torch, node) for node in module.graph.nodes)
        code = set(generated_code(torch)) - before
    except Exception as error:  # PyTorch's errors share no base but Exception
        raise ConfigError((f"model {model!r}: {model_file} cannot be loaded: {describe_failure(error)}",)) from error
    return Opened(read.declared, run, partial(_row_range, read), writes, partial(_free, torch, module, code))


def read_program(model_file: Path, model: str) -> Program:
    """Read a program's archive.

    Raises:
        ConfigError: The archive cannot be read, has another format, or has tensors that cannot be served.
    """
    with opened(model_file, model=model) as archive:
        found = [name for name in archive.namelist() if _GRAPH.fullmatch(name)]
        if not found:
            hint = "torch.export.save writes those; packages of AOTInductor cannot be served"
            raise ConfigError((f"model {model!r}: {model_file} holds no program of torch.export: {hint}",))
        text = archive.read(found[0])
    try:
        stored = json.loads(text)
        version = stored["schema_version"]["major"]
        if version != _SCHEMA:
            problem = f"is of version {version} of the format, and {_SCHEMA} is known: export it again"
            raise ConfigError((f"model {model!r}: {model_file} {problem}",))
        return _program(stored, model)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"cannot be understood: {type(error).__name__}: {error}"
        raise ConfigError((f"model {model!r}: {model_file} {problem}",)) from error


def _program(stored: Mapping[str, Any], model: str) -> Program:
    module = stored["graph_module"]
    graph, signature = module["graph"], module["signature"]
    problems: list[str] = []
    taken = [spec["user_input"]["arg"] for spec in signature["input_specs"] if "user_input" in spec]
    inputs = [_tensor(graph, arg, "input", None, problems) for arg in taken]
    (call,) = (entry["signature"] for entry in module["module_call_graph"] if not entry["fqn"])
    names = list(_names(json.loads(call["out_spec"])[1]))
    results = [spec["user_output"]["arg"] for spec in signature["output_specs"] if "user_output" in spec]
    kept = [(name, arg) for name, arg in zip(names, results, strict=True) if "as_none" not in arg]
    outputs = [_tensor(graph, arg, "output", name, problems) for name, arg in kept]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems += [f"two outputs would be called {name!r}: rename what forward returns" for name in twice]
    if problems:
        raise ConfigError(tuple(f"model {model!r}: {problem}" for problem in problems))
    declared = ModelSignature(tuple(inputs), tuple(outputs))
    return Program(graph, stored["range_constraints"], declared, tuple(arg["as_tensor"]["name"] for _, arg in kept))


def program_ends(model_file: Path) -> GraphEnds:
    """Find the function that produces each output. Raises `ValueError` if the file is no program."""
    try:
        program = read_program(model_file, model_file.name)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    made: dict[str, Made] = {}
    for node in program.graph["nodes"]:
        values = [given["arg"]["as_tensor"]["name"] for given in node["inputs"] if "as_tensor" in given["arg"]]
        operator = node["target"].removeprefix("torch.ops.aten.").partition(".")[0]
        for result in node["outputs"]:
            if "as_tensor" in result:
                made[result["as_tensor"]["name"]] = Made(operator, tuple(values))
    found = {
        spec.name: applied_function(made, value, _FUNCTIONS, _KEEPING, "")
        for spec, value in zip(program.declared.outputs, program.outputs, strict=True)
    }
    return GraphEnds({name: function for name, function in found.items() if function})


def _tensor(
    graph: Mapping[str, Any], arg: Mapping[str, Any], side: str, name: str | None, problems: list[str]
) -> TensorSpec:
    """An input, named as in the graph, or an output of this name."""
    if "as_tensor" not in arg:
        problems.append(f"an {side} is no tensor: {name or json.dumps(arg)}")
        return TensorSpec("", "", ())
    value = arg["as_tensor"]["name"]
    name, meta = name or value, graph["tensor_values"][value]
    dtype = _DTYPES.get(meta["dtype"])
    if dtype is None:
        problems.append(f"{side} {name!r} is of a type that cannot be served")
        return TensorSpec(name, "", ())
    if meta["device"]["type"] != "cpu":
        problems.append(f"{side} {name!r} is on {meta['device']['type']}: export the model on the CPU")
    shape = tuple(size.get("as_int", -1) for size in meta["sizes"])
    return TensorSpec(name, DATATYPES[dtype], shape)


def _names(spec: Mapping[str, Any], path: Sequence[str] = ()) -> Iterator[str]:
    """Name each value that `forward` returns: by key in dicts, by position elsewhere."""
    if spec["type"] is None:
        yield "_".join(path) if path else "output"
        return
    keys = json.loads(spec["context"]) if spec["type"] in {"builtins.dict", "collections.OrderedDict"} else None
    for place, child in enumerate(spec["children_spec"]):
        if keys is not None:
            yield from _names(child, (*path, str(keys[place])))
        else:
            yield from _names(child, (*(path or ("output",)), str(place)))


def _row_range(program: Program, axes: Mapping[str, int]) -> RowRange:
    least, most = 1, None
    for spec in program.declared.inputs:
        size = program.graph["tensor_values"][spec.name]["sizes"][axes.get(spec.name, 0)]
        found = program.ranges.get(symbol_of(text_of(size)) or "", {})
        least = max(least, found.get("min_val") or 1)
        upper = found.get("max_val")
        if upper is not None:
            most = upper if most is None else min(most, upper)
    return RowRange(least, most)


def _prove(program: Program, axes: Mapping[str, int]) -> RowProof:
    return prove_rows(program.graph, [spec.name for spec in program.declared.inputs], program.outputs, axes)


def _runner(torch: Any, program: Any, module: Any) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """Wrap a program: takes tensors by name and returns the tensors among its results."""
    kinds, trees = torch.export.graph_signature, torch.utils._pytree
    signature, taken = program.graph_signature, program.call_spec.in_spec
    slots = [spec.arg for spec in signature.input_specs if spec.kind == kinds.InputKind.USER_INPUT]
    results = [spec.arg for spec in signature.output_specs if spec.kind == kinds.OutputKind.USER_OUTPUT]
    wanted = [place for place, arg in enumerate(results) if isinstance(arg, kinds.TensorArgument)]

    def run(inputs: Mapping[str, Any]) -> Sequence[Any]:
        given = [slot.value if isinstance(slot, kinds.ConstantArgument) else inputs[slot.name] for slot in slots]
        args, kwargs = trees.tree_unflatten(given, taken)
        answer = trees.tree_leaves(module(*args, **kwargs))
        return [answer[place] for place in wanted]

    return run


def _free(torch: Any, module: Any, code: Iterable[str]) -> None:
    """Empty a module and its children, and drop PyTorch's leftovers of the program.

    Modules form cycles with their graphs: their weights would stay until a garbage collection, which is rare in a
    process with PyTorch's hundreds of thousands of objects.
    """
    for each in list(module.modules()):
        vars(each).clear()
    drop_leftovers(torch, code)


def _may_write(torch: Any, node: Any) -> bool:
    """Whether a node may write to foreign memory: any node not known to only read."""
    if node.op != "call_function" or node.target.__module__ in {"_operator", "math"}:
        return False
    return not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable
