"""Whether each row of a program's outputs depends on the same row of its inputs alone, proven from its graph.

Every value of the graph is either a constant, which no input has a part in, or rows: dimension 0 is the batch, and row
i depends on row i of the inputs alone. `RULES` has, for operators that make rows of rows, what they must be called
with. What is not there is not proven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rowproof.result import RowProof
from rowproof.sizes import symbol_of, text_of

_END: Final = 2**63 - 1


class NotProvenError(Exception):
    """What prevents the proof.

    Args:
        reason: For an operator of the server.
        dependent: Whether rows are known to be mixed.
        random: Whether random numbers are drawn.
    """

    def __init__(self, reason: str, *, dependent: bool = False, random: bool = False) -> None:
        super().__init__(reason)
        self.proof = RowProof(False, reason, dependent, random)


def prove_rows(
    graph: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str], axes: Mapping[str, int]
) -> RowProof:
    """Whether rows are independent of each other, of their number and of their places.

    Args:
        graph: As a program's archive has it.
        inputs: Names of the values that requests bring.
        outputs: Names of the values that they get.
        axes: The axis of the rows by the name of an input or output, where it is not 0.

    Returns:
        The proof, or what prevents it. Never raises: a graph that cannot be followed is not proven.
    """
    if axes:
        return RowProof(False, "of a program of torch.export rows are proven in dimension 0 only")
    try:
        return _Walk(graph, inputs).proof(outputs)
    except NotProvenError as error:
        return error.proof
    except Exception as error:  # a strange graph is one that nothing is proven of
        return RowProof(False, f"the graph cannot be followed ({type(error).__name__}: {error})")


class _Walk:
    """Goes through a graph in the order of its nodes."""

    def __init__(self, graph: Mapping[str, Any], inputs: Sequence[str]) -> None:
        self._graph = graph
        self.values = graph["tensor_values"]
        # Inputs that the program does not relate have a symbol each: they are all the number of rows.
        self.batches = {text_of(self.values[name]["sizes"][0]) for name in inputs}
        self._symbols = [symbol for size in self.batches if (symbol := symbol_of(size))]
        if len(self._symbols) != len(self.batches) and not (len(self.batches) == 1 and "".join(self.batches).isdigit()):
            raise NotProvenError(f"dimension 0 of the inputs is of sizes {', '.join(sorted(self.batches))}")
        self.rows = set(inputs)
        self.shares_constants = False

    def proof(self, outputs: Sequence[str]) -> RowProof:
        for node in self._graph["nodes"]:
            made = [name for result in node["outputs"] for name in _tensors(result)]
            if made or any(_tensors(each["arg"]) for each in node["inputs"]):
                self._step(Call(self, node, made))
        for name in outputs:
            if name not in self.rows:
                raise NotProvenError("an output does not depend on the inputs: it has no rows")
        return RowProof(True, "every operator treats rows one by one")

    def _step(self, call: Call) -> None:
        if not call.made and call.operator in _OF_SIZES:
            return
        _look(call)
        makes_rows = call.takes_rows or _repeats(call)
        for name in call.made:
            if makes_rows and self.size(name, 0) not in self.batches:
                raise NotProvenError(f"{call.operator} does not keep the rows in dimension 0")
            if any(self.of_batch(size) for size in self.values[name]["sizes"][1 if makes_rows else 0 :]):
                raise NotProvenError(f"{call.operator} makes another dimension as large as there are rows")
        if makes_rows:
            self.rows.update(call.made)
            self.shares_constants |= not call.takes_rows

    def rank(self, name: str) -> int:
        return len(self.values[name]["sizes"])

    def size(self, name: str, dimension: int) -> str:
        sizes = self.values[name]["sizes"]
        return text_of(sizes[dimension]) if sizes else ""

    def counts(self, argument: Mapping[str, Any]) -> bool:
        """Whether a number among these arguments may depend on the number of rows."""
        names = [each["as_name"] for each in _symbolic(argument) if "as_name" in each]
        known = {**self._graph["sym_int_values"], **self._graph["sym_float_values"], **self._graph["sym_bool_values"]}
        return any(name not in known or self.of_batch(known[name]) for name in names)

    def of_batch(self, size: Any) -> bool:
        """Whether a size, or a number made of sizes, may depend on the number of rows."""
        return any(symbol in str(size) for symbol in self._symbols)


class Call:
    """One call of an operator.

    Attributes:
        operator: Its name, e.g. ``softmax``.
        made: Its results that are tensors.
        takes_rows: Whether an argument is rows.
        rank: Dimensions of the first result.
    """

    def __init__(self, walk: _Walk, node: Mapping[str, Any], made: Sequence[str]) -> None:
        self._walk = walk
        target = str(node["target"])
        if not target.startswith("torch.ops.aten."):
            raise NotProvenError(f"nothing is known of {target.removeprefix('torch.ops.')}")
        self.operator = target.split(".")[3]
        self.arguments = {each["name"]: each["arg"] for each in node["inputs"]}
        self.takes_rows = any(name in walk.rows for name in self.tensors())
        self.made = made
        self.rank = walk.rank(made[0]) if made else 0

    def tensors(self, *arguments: str) -> list[str]:
        """The tensors of these arguments, or of all."""
        named = [self.arguments[name] for name in arguments if name in self.arguments] if arguments else None
        return [name for each in (self.arguments.values() if named is None else named) for name in _tensors(each)]

    def is_rows(self, *arguments: str) -> bool:
        """Whether all tensors of these arguments, or of all, are rows; one at least."""
        found = self.tensors(*arguments)
        return bool(found) and all(name in self._walk.rows for name in found)

    def is_constant(self, *arguments: str) -> bool:
        """Whether none of them is rows."""
        return not any(name in self._walk.rows for name in self.tensors(*arguments))

    def rank_of(self, argument: str) -> int:
        """Dimensions of a tensor."""
        return self._walk.rank(self.tensors(argument)[0])

    def is_same_for_all(self, argument: str) -> bool:
        """Whether a constant is the same for all rows of the result that it is repeated for."""
        name = self.tensors(argument)[0]
        return self._walk.rank(name) < self.rank or self._walk.size(name, 0) == "1"

    def broadcasts(self, *arguments: str) -> bool:
        """Whether each tensor of these arguments, or of all, is rows of the result's rank, or the same for all rows."""
        walk = self._walk
        return all(
            walk.rank(name) == self.rank
            if name in walk.rows
            else walk.rank(name) < self.rank or walk.size(name, 0) == "1"
            for name in self.tensors(*arguments)
        )

    def number(self, argument: str, default: Any = None) -> Any:
        """A number, a truth value or numbers."""
        found = self.arguments.get(argument)
        if found is None or "as_none" in found:
            return default
        ((kind, value),) = found.items()
        return value if kind in {"as_int", "as_ints", "as_float", "as_bool"} else default

    def has_batch(self) -> bool:
        """Whether dimension 0 of the result is as large as there are rows."""
        return self.rank > 0 and self._walk.size(self.made[0], 0) in self._walk.batches

    def writes_to_rows(self) -> bool:
        """Whether what it writes to is rows, and surely no constant's memory."""
        return self.is_rows("self") and not self._walk.shares_constants

    def counts_rows(self, but: str = "") -> bool:
        """Whether a number that it is given may depend on the number of rows, but for those of this argument."""
        return any(self._walk.counts(each) for name, each in self.arguments.items() if name != but)


def _look(call: Call) -> None:
    """Raise where a call mixes rows, or might."""
    name = call.operator
    if name in _RANDOM or (name in _DROPOUT and call.number("train", default=call.number("training", default=True))):
        raise NotProvenError(f"{name} draws random numbers", random=True)
    if not call.takes_rows and name in _FACTORIES and not call.counts_rows(but="size" if name in _FILLS else ""):
        return
    rule = RULES.get(name)
    if rule is None and name.removesuffix("_") in _ELEMENTWISE:
        if not call.writes_to_rows():
            raise NotProvenError(f"{name} writes to what may be part of the model: was it exported as for training?")
        rule = _elementwise  # what shares memory with rows is rows, before and after
    if rule is None:
        raise NotProvenError(f"nothing is known of the operator {name}")
    if name not in _TOLD_SIZES and call.counts_rows():
        raise NotProvenError(f"{name} uses the number of rows")
    if call.takes_rows and not rule(call):
        raise NotProvenError(f"{name} is not known to keep rows apart as it is called")


# --- Rules: whether a call that takes rows makes rows -----------------------------------------------------------------


def _elementwise(call: Call) -> bool:
    return call.broadcasts()


def _linear(call: Call) -> bool:
    return call.is_rows("input") and call.rank_of("input") >= 2 and call.is_constant("weight", "bias")


def _addmm(call: Call) -> bool:
    return call.is_rows("mat1") and call.is_constant("mat2") and call.broadcasts("self")


def _matmul(call: Call) -> bool:
    """Rows times a matrix, or a matrix for each row."""
    second = "mat2" if "mat2" in call.arguments else "other"
    ranks = call.rank_of("self"), call.rank_of(second)
    if call.is_rows("self") and call.is_constant(second):
        return ranks[0] >= 2 and (ranks[1] <= 2 or ranks[1] < ranks[0])
    if call.is_constant("self"):
        return ranks[1] >= 3 and ranks[0] < ranks[1]
    return call.is_rows() and ranks[0] == ranks[1] >= 3


def _convolution(call: Call) -> bool:
    unchanged = call.is_constant("weight", "bias")
    return unchanged and call.is_rows("input") and call.rank_of("input") == call.rank_of("weight")


def _batch_norm(call: Call) -> bool:
    if call.number("training", default=call.operator != "_native_batch_norm_legit_no_training"):
        raise NotProvenError(f"{call.operator} is exported as for training: it mixes rows", dependent=True)
    return call.is_rows("input") and call.is_constant("weight", "bias", "running_mean", "running_var")


def _group_norm(call: Call) -> bool:
    return call.is_rows("input") and call.rank >= 2 and call.is_constant("weight", "bias")


def _layer_norm(call: Call) -> bool:
    shape = call.number("normalized_shape")
    if shape is None or len(shape) >= call.rank_of("input"):
        return False
    return call.is_rows("input") and call.is_constant("weight", "bias")


def _along(default: int | None = None) -> Callable[[Call], bool]:
    """Works along dimensions that are not the rows'."""

    def rule(call: Call) -> bool:
        tensors = "tensors" if "tensors" in call.arguments else "self"
        indices = {"index"} if call.operator == "gather" else set()
        others = set(call.arguments) - {tensors} - indices
        if "other" in others:
            return call.broadcasts()
        if not call.is_rows(tensors) or (others and not call.is_constant(*others)):
            return False
        rank = call.rank if call.operator == "stack" else call.rank_of(tensors)
        found = call.number("dim", call.number("dims", default))
        dimensions = [found] if isinstance(found, int) else list(found or ())
        if rank < 1 or not dimensions or any(each % rank == 0 for each in dimensions):
            raise NotProvenError(f"{call.operator} works along dimension 0, the rows'", dependent=True)
        return True

    return rule


def _gather(call: Call) -> bool:
    return call.is_rows() and call.rank_of("self") == call.rank_of("index") and _along()(call)


def _slice(call: Call) -> bool:
    if call.number("dim", 0) % call.rank == 0:
        whole = (call.number("start", 0), call.number("end", _END), call.number("step", 1)) == (0, _END, 1)
        return whole and "as_sym_int" not in {**call.arguments.get("start", {}), **call.arguments.get("end", {})}
    return True


def _transpose(call: Call) -> bool:
    return all(call.number(each, 0) % call.rank for each in ("dim0", "dim1"))


def _permute(call: Call) -> bool:
    return bool(call.number("dims")[0] % call.rank == 0)


def _squeeze(call: Call) -> bool:
    """Which dimensions go must not depend on how many rows there are."""
    found = call.number("dim")
    rank = call.rank_of("self")
    return found is not None and all(each % rank for each in ([found] if isinstance(found, int) else found))


def _unsqueeze(call: Call) -> bool:
    return bool(call.number("dim", 0) % call.rank)


def _reshape(call: Call) -> bool:
    """What has as many rows before and after it, in row-major order, has the same numbers in each."""
    return call.rank_of("self") >= 1


def _repeats(call: Call) -> bool:
    """Whether a call makes rows of a constant, or of nothing: the same for each."""
    if call.takes_rows or not call.has_batch():
        return False
    return call.operator in _FILLS or (call.operator in {"expand", "repeat"} and call.is_same_for_all("self"))


def _expand(call: Call) -> bool:
    return call.rank_of("self") == call.rank


def _repeat(call: Call) -> bool:
    times = call.number("repeats")
    return call.rank_of("self") == call.rank and times is not None and times[0] == 1


def _pad(call: Call) -> bool:
    return len(call.number("pad", range(2 * call.rank))) < 2 * call.rank


def _spatial(call: Call) -> bool:
    """Of pictures and signals: a batch, channels, and as many dimensions as the name says."""
    tensor = "self" if "self" in call.arguments else "input"
    digits = [int(letter) for letter in call.operator if letter.isdigit()]
    return call.is_rows(tensor) and call.rank_of(tensor) == 2 + digits[0]


def _embedding(call: Call) -> bool:
    return call.is_constant("weight") and call.is_rows("indices")


def _attention(call: Call) -> bool:
    if call.number("dropout_p", 0.0):
        raise NotProvenError(f"{call.operator} draws random numbers", random=True)
    parts = ("query", "key", "value")
    return call.is_rows(*parts) and all(call.rank_of(each) == call.rank >= 3 for each in parts) and call.broadcasts()


_DROPOUT: Final = frozenset({"dropout", "native_dropout", "feature_dropout", "alpha_dropout"})
_DRAWS: Final = """
    bernoulli exponential multinomial normal poisson rand rand_like randint randint_like randn randn_like randperm
    rrelu rrelu_with_noise uniform
"""
_RANDOM: Final = frozenset(_DRAWS.split())
_FILLS: Final = frozenset({"full", "ones", "zeros"})
_FACTORIES: Final = _FILLS | {"arange", "eye", "linspace", "scalar_tensor"}
"""Make constants of nothing."""

_TOLD_SIZES: Final = frozenset(
    {"view", "reshape", "_unsafe_view", "unflatten", "expand", "repeat", "native_group_norm"}
)
"""May be told the number of rows: it is compared with that of the result."""

_OF_SIZES: Final = frozenset({"sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "_assert_tensor_metadata"})
"""Make numbers of sizes, and say in the graph how; or look at types."""

_EACH: Final = """
    __and__ __or__ __xor__ _to_copy abs add addcdiv addcmul alias atan atan2 bitwise_and bitwise_not bitwise_or
    bitwise_xor ceil celu clamp clamp_max clamp_min clone contiguous cos cosh detach detach_ div elu eq erf exp expm1
    floor floor_divide fmod full_like ge gelu gt hardsigmoid hardswish hardtanh isfinite isinf isnan le leaky_relu lerp
    lift_fresh_copy log log10 log1p log2 log_sigmoid logical_and logical_not logical_or logical_xor lt masked_fill
    maximum minimum mish mul nan_to_num ne neg ones_like pow reciprocal relu relu6 remainder round rsqrt rsub selu
    sigmoid sign silu sin sinh softplus sqrt square sub tan tanh to trunc type_as where zeros_like
    dropout native_dropout feature_dropout alpha_dropout
"""
_ELEMENTWISE: Final = frozenset(_EACH.split())
_ALONG: Final = """
    softmax _softmax log_softmax _log_softmax logsumexp sum mean prod amax amin any all argmax argmin var std max min
    cumsum cumprod cat stack split split_with_sizes chunk unbind select flip roll index_select
"""
_SPATIAL: Final = """
    max_pool1d max_pool2d max_pool3d max_pool2d_with_indices avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d
    upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d
"""
_CONVOLUTIONS: Final = "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d"
_RULES: Final[tuple[tuple[str, Callable[[Call], bool]], ...]] = (
    (_ALONG, _along()),
    ("topk sort argsort glu", _along(-1)),
    ("gather", _gather),
    ("linear", _linear),
    ("addmm", _addmm),
    ("matmul mm bmm", _matmul),
    (_CONVOLUTIONS, _convolution),
    ("batch_norm _native_batch_norm_legit_no_training", _batch_norm),
    ("group_norm native_group_norm", _group_norm),
    ("layer_norm native_layer_norm rms_norm", _layer_norm),
    (_SPATIAL, _spatial),
    ("embedding", _embedding),
    ("scaled_dot_product_attention", _attention),
    ("slice", _slice),
    ("transpose", _transpose),
    ("permute", _permute),
    ("squeeze", _squeeze),
    ("unsqueeze", _unsqueeze),
    ("view reshape _unsafe_view flatten unflatten", _reshape),
    ("expand", _expand),
    ("repeat", _repeat),
    ("pad constant_pad_nd", _pad),
)
RULES: Final[Mapping[str, Callable[[Call], bool]]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **{name: rule for names, rule in _RULES for name in names.split()},
}
"""By the name of an operator, whether a call that takes rows makes rows. A call that takes none makes constants."""


def _tensors(argument: Mapping[str, Any]) -> list[str]:
    ((kind, value),) = argument.items()
    if kind == "as_tensor":
        return [value["name"]]
    if kind == "as_tensors":
        return [each["name"] for each in value]
    if kind == "as_optional_tensor":
        return _tensors(value)
    if kind == "as_optional_tensors":
        return [name for each in value for name in _tensors(each)]
    if kind == "as_nested_tensors":
        return [each["name"] for part in value for each in part]
    if kind == "as_graph":
        raise NotProvenError("a part of the graph has a graph of its own")
    return []


def _symbolic(argument: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Numbers of an argument that may be made of sizes."""
    ((kind, value),) = argument.items()
    if not kind.startswith("as_sym_"):
        return []
    return value if isinstance(value, list) else [value]
