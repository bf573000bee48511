"""Reads the declarations of a model's class from its file, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rowproof.result import RowProof
from serve_app.config.problems import hint, nearest, short_repr
from serve_app.errors import ConfigError
from serve_app.payloads import DATATYPES, ModelSignature, TensorSpec

_TYPES: Final[Mapping[str, str]] = MappingProxyType({**DATATYPES, "str": "BYTES", "bytes": "BYTES"})
"""The types that a class may declare, and what the protocol calls them."""

_ATTRIBUTES: Final = ("inputs", "outputs", "rows_independent", "files")
_PROCESSING: Final[Mapping[str, tuple[int, str]]] = MappingProxyType(
    {
        "preprocess": (2, "preprocess takes a request: write def preprocess(self, request)"),
        "postprocess": (3, "postprocess takes a request and outputs: write def postprocess(self, request, outputs)"),
    }
)
"""Methods for media and JSON, how many arguments they take, and what is said of others."""
_EXAMPLE: Final = '{"x": ("float32", [-1, 4])}'


class Declared(NamedTuple):
    """One declared tensor: name, type (one of `_TYPES`) and shape."""

    name: str
    kind: str
    shape: tuple[int, ...]


class Declaration(NamedTuple):
    """The declarations of a class.

    Attributes:
        name: Of the class.
        rows_independent: Whether the class declares its rows independent; ``None``: undeclared.
        files: Files that it needs, relative to its folder.
        methods: `preprocess` and `postprocess`, if defined.
        line: Its line in the file.
        streams: Whether `predict` is a generator, so that answers come in parts.
    """

    name: str
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    rows_independent: bool | None
    files: tuple[str, ...]
    methods: tuple[str, ...] = ()
    line: int = 0
    streams: bool = False

    @property
    def signature(self) -> ModelSignature:
        """Its tensors with the declared shapes."""
        inputs, outputs = (
            tuple(TensorSpec(name, _TYPES[kind], shape) for name, kind, shape in side)
            for side in (self.inputs, self.outputs)
        )
        return ModelSignature(inputs, outputs)

    def prove(self, axes: Mapping[str, int]) -> RowProof:
        """The declared independence of rows, checked on the loaded model before requests share runs."""
        if self.rows_independent:
            for each in self.outputs:
                if len(each.shape) <= axes.get(each.name, 0):
                    return RowProof(False, f"output {each.name!r} has no dimension for rows", dependent=True)
            return RowProof(True, f"class {self.name} declares rows_independent")
        if self.rows_independent is None:
            return RowProof(
                False,
                f"class {self.name} does not say whether rows are independent of each other: declare"
                " rows_independent = True if they are",
            )
        return RowProof(False, f"class {self.name} declares rows_independent = False", dependent=True)


def read_declaration(
    model_file: Path, model: str, class_name: str | None = None, *, processes: bool = False
) -> Declaration:
    """Read the declarations of a class.

    Args:
        class_name: ``None``: the only class with `predict`.
        processes: Whether `preprocess` and `postprocess` are in use, so that their faults count.

    Raises:
        ConfigError: One line for each fault, with its place in the file.
    """
    reader = _DeclarationReader(model_file, model)
    declared = reader.read(class_name, processes=processes)
    if reader.problems:
        raise ConfigError(tuple(reader.problems))
    assert declared is not None
    return declared


def files_beside(model_file: Path) -> tuple[str, ...]:
    """Files that a model's file may need: modules beside it, and files that its classes name."""
    reader = _DeclarationReader(model_file, model_file.name)
    named = [name for each in reader.classes() for name in reader.files(each)]
    if reader.problems:
        raise ConfigError(tuple(reader.problems))
    modules = sorted(file.name for file in model_file.parent.glob("*.py") if file.is_file())
    return tuple(dict.fromkeys(name for name in (*modules, *named) if name != model_file.name))


class _DeclarationReader:
    """Reads one file and collects its faults."""

    def __init__(self, model_file: Path, model: str) -> None:
        self._file = model_file
        self._model = model
        self.problems: list[str] = []

    def classes(self) -> list[ast.ClassDef]:
        """The classes of the file; none if it cannot be read."""
        try:
            tree = ast.parse(self._file.read_bytes(), self._file.name)
        except OSError as error:
            self._fault(f"cannot be read: {error.strerror}")
            return []
        except SyntaxError as error:
            self._fault(f"is no Python: {error.msg}", error.lineno)
            return []
        except (ValueError, RecursionError, MemoryError) as error:
            self._fault(f"is no Python: {str(error) or type(error).__name__}")
            return []
        return [each for each in tree.body if isinstance(each, ast.ClassDef)]

    def read(self, class_name: str | None, *, processes: bool = False) -> Declaration | None:
        """The declarations of a class; ``None`` if there is a fault."""
        found = self.classes()
        if self.problems:
            return None
        chosen = self._choose(found, class_name)
        if chosen is None:
            return None
        self._check_predict(chosen)
        if processes:
            self._check_processing(chosen)
        values = dict(_assigned(chosen))
        sides = [self._side(chosen, name, values.get(name)) for name in ("inputs", "outputs")]
        independent = self._literal("rows_independent", values.get("rows_independent"), "True or False")
        if independent is not None and not isinstance(independent, bool):
            self._fault("rows_independent must be True or False", values["rows_independent"].lineno)
        if not sides[1]:
            self._fault(f"class {chosen.name} declares no output: write outputs = {_EXAMPLE}", chosen.lineno)
        files = self.files(chosen)
        if self.problems:
            return None
        methods = tuple(name for name in _PROCESSING if _method(chosen, name) is not None)
        streams = _yields(_method(chosen, "predict"))
        return Declaration(chosen.name, sides[0], sides[1], independent, files, methods, chosen.lineno, streams)

    def files(self, chosen: ast.ClassDef) -> tuple[str, ...]:
        node = dict(_assigned(chosen)).get("files")
        if node is None:
            return ()
        names = self._literal("files", node, '["weights.npz"]')
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name for name in names):
            self._fault('files must be a list of names, such as ["weights.npz"]', node.lineno)
            return ()
        for name in names:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                self._fault(f"files: {short_repr(name)} is outside the model's folder", node.lineno)
        return tuple(names)

    def _choose(self, found: list[ast.ClassDef], class_name: str | None) -> ast.ClassDef | None:
        names = [each.name for each in found]
        if class_name is not None:
            for each in reversed(found):  # the last definition of a name is the one that counts
                if each.name == class_name:
                    return each
            meant = hint(class_name, names)
            self._fault(f"has no class {short_repr(class_name)}, which backend_options.class names; {meant}")
            return None
        able = [each for each in found if _method(each, "predict") is not None]
        if len(able) == 1:
            return able[0]
        if able:
            listed = ", ".join(each.name for each in able)
            self._fault(f"has several classes with predict ({listed}): say which one by backend_options.class")
        else:
            self._fault("has no class with a method predict: write a class with def predict(self, batch)")
        return None

    def _check_predict(self, chosen: ast.ClassDef) -> None:
        predict = _method(chosen, "predict")
        if predict is not None:
            self._check_method(predict, 2, "predict takes the batch: write def predict(self, batch)")
        elif not chosen.bases:
            self._fault(f"class {chosen.name} has no method predict: write def predict(self, batch)", chosen.lineno)

    def _check_processing(self, chosen: ast.ClassDef) -> None:
        methods = {name: method for name in _PROCESSING if (method := _method(chosen, name)) is not None}
        for name, method in methods.items():
            self._check_method(method, *_PROCESSING[name])
        if "postprocess" in methods and "preprocess" not in methods:
            problem = "has postprocess and no preprocess: write def preprocess(self, request)"
            self._fault(f"class {chosen.name} {problem}", methods["postprocess"].lineno)

    def _check_method(self, method: ast.FunctionDef | ast.AsyncFunctionDef, arguments: int, said: str) -> None:
        if isinstance(method, ast.AsyncFunctionDef):
            self._fault(f"{method.name} is run in a thread of its own: write def, and not async def", method.lineno)
        elif not method.decorator_list:
            taken = method.args
            places = [*taken.posonlyargs, *taken.args]
            needed = len(places) - len(taken.defaults)
            if needed > arguments or (len(places) < arguments and taken.vararg is None):
                self._fault(said, method.lineno)

    def _side(self, chosen: ast.ClassDef, attribute: str, node: ast.expr | None) -> tuple[Declared, ...]:
        if node is None:
            self._fault(f"class {chosen.name} declares no {attribute}: write {attribute} = {_EXAMPLE}", chosen.lineno)
            return ()
        before = len(self.problems)
        value = self._literal(attribute, node, _EXAMPLE)
        if len(self.problems) > before:
            return ()
        if not isinstance(value, dict):
            self._fault(f"{attribute} must be a dict, such as {_EXAMPLE}", node.lineno)
            return ()
        return tuple(
            declared
            for name, told in value.items()
            if (declared := self._tensor(f"{attribute}[{name!r}]", name, told, node.lineno)) is not None
        )

    def _tensor(self, place: str, name: Any, told: Any, line: int) -> Declared | None:
        if not isinstance(name, str) or not name:
            self._fault(f"{place}: names of tensors are text", line)
            return None
        if not isinstance(told, (list, tuple)) or len(told) != 2:
            self._fault(f'{place} must be a type and a shape, such as ("float32", [-1, 4])', line)
            return None
        kind, shape = told
        if not isinstance(kind, str) or kind not in _TYPES:
            guess = nearest(kind, _TYPES) if isinstance(kind, str) else None
            known = f"did you mean {guess}?" if guess else f"there is {', '.join(_TYPES)}"
            self._fault(f"{place}: unknown type {short_repr(kind)}; {known}", line)
            return None
        if not isinstance(shape, (list, tuple)) or not all(type(size) is int and size >= -1 for size in shape):
            self._fault(f"{place}: a shape is a list of sizes, -1 for one that varies, such as [-1, 4]", line)
            return None
        return Declared(name, kind, tuple(shape))

    def _literal(self, attribute: str, node: ast.expr | None, example: str) -> Any:
        if node is None:
            return None
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            self._fault(
                f"{attribute} must be written out, such as {example}: the file is read without running it", node.lineno
            )
            return None

    def _fault(self, problem: str, line: int | None = None) -> None:
        place = str(self._file) if line is None else f"{self._file}:{line}"
        self.problems.append(f"model {self._model!r}: {place}: {problem}")


def _method(each: ast.ClassDef, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for item in reversed(each.body):
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and item.name == name:
            return item
    return None


def _yields(method: ast.AST | None) -> bool:
    """Whether a method itself is a generator, regardless of functions inside it."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    left: list[ast.AST] = [] if method is None else list(getattr(method, "body", ()))
    while left:
        node = left.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, inner):
            left.extend(ast.iter_child_nodes(node))
    return False


def _assigned(each: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The attributes of interest that a class's body sets."""
    for item in each.body:
        targets = (
            item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
        )
        value = item.value if isinstance(item, (ast.Assign, ast.AnnAssign)) else None
        for target in targets:
            if isinstance(target, ast.Name) and target.id in _ATTRIBUTES and value is not None:
                yield target.id, value
