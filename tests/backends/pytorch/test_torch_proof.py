"""Which programs of ``torch.export`` are proven to treat rows one by one, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_models import exported, load, torch

from rowproof.result import RowProof
from serve_app.backends.description import describe_build
from serve_app.backends.layout import ROWS_FIRST
from serve_app.backends.pytorch.kind import TORCH_EXPORT

pytestmark = pytest.mark.torch

functional = torch.nn.functional
WIDTH = 4


class Of(torch.nn.Module):
    """A function of x [rows, 4], with a constant of [4, 4] and layers to use."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.table = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.row = torch.nn.Parameter(torch.randn(1, WIDTH))
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.across = torch.nn.MultiheadAttention(WIDTH, 2)
        self.group = torch.nn.GroupNorm(2, WIDTH)
        self.convolution = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.function(self, x)


def written(function: Callable[[Any, Any], Any], folder: Path, *, core: bool = False, training: bool = False) -> Path:
    """The function as a program, in PyTorch's usual operators or in those of core ATen."""
    file = folder / "model.pt2"
    torch.manual_seed(3)
    file.write_bytes(
        exported(
            Of(function), (torch.randn(3, WIDTH),), {"x": {0: torch.export.Dim("rows")}}, core=core, training=training
        )
    )
    return file


def proof(file: Path) -> RowProof:
    """What is proven of it."""
    return TORCH_EXPORT.inspect(file, "m", TORCH_EXPORT.options()).prove({})


def pooled(_: Any, x: Any) -> Any:
    """As for signals: [rows, 4] -> [rows, 1, 4]."""
    return functional.avg_pool1d(functional.max_pool1d(x.unsqueeze(1), 2), 2).squeeze(1)


def masked(_: Any, x: Any) -> Any:
    """Lengths come from the numbers."""
    kept = torch.arange(WIDTH) < x.sum(-1, keepdim=True)
    return x.masked_fill(~kept, float("-inf")).softmax(-1).nan_to_num()


def attended(model: Any, x: Any) -> Any:
    """Two heads, a token for each number, with a class token in front and places added."""
    tokens = x.unsqueeze(-1) * model.row
    together = torch.cat([model.row.expand(x.shape[0], 1, WIDTH), tokens], 1)
    heads = (together + torch.arange(WIDTH + 1).unsqueeze(1)).unflatten(2, (2, 2)).transpose(1, 2)
    seen = functional.scaled_dot_product_attention(heads, heads * model.row[:, :2], heads)
    return seen.transpose(1, 2).flatten(2)[:, 0]


PROVEN: dict[str, Callable[[Any, Any], Any]] = {
    "a layer": lambda model, x: model.linear(x).relu(),
    "a product": lambda model, x: x @ model.table + model.row,
    "products of rows": lambda model, x: torch.bmm(x.unsqueeze(1), x.unsqueeze(2)).flatten(1),
    "a constant from the left": lambda model, x: model.table @ x.unsqueeze(2),
    "normalised": lambda model, x: functional.layer_norm(x, (WIDTH,)) + model.group(x),
    "softmax": lambda _, x: functional.log_softmax(x, -1) + x.softmax(1),
    "attention with a class token": attended,
    "a convolution": lambda model, x: functional.gelu(model.convolution(x.unsqueeze(2).repeat(1, 1, 5))).mean(2),
    "pooling": pooled,
    "a mask": masked,
    "the k largest": lambda _, x: x.topk(2).values.sum(-1) + x.sort(dim=1).values.cumsum(1)[:, -1],
    "dimensions": lambda _, x: x.view(-1, 2, 2).transpose(1, 2).reshape(x.shape[0], WIDTH).flip(1)[:, ::2],
    "parts": lambda _, x: torch.stack(x.chunk(2, 1), -1).flatten(1) + torch.cat(x.split(1, 1), 1),
    "a choice": lambda _, x: torch.where(x > 0, x, -x).clamp(max=2).gather(1, x.argsort(1)),
    "in place": lambda model, x: model.linear(x).relu_().add_(1),
    "a first state": lambda _, x: torch.cat([torch.zeros(x.shape[0], 1), x], 1),
    "padding": lambda _, x: functional.pad(x, (1, 2)),
    "dropout that is off": lambda _, x: functional.dropout(x, training=False),
    "two outputs": lambda model, x: {"a": x.amax(1), "b": (x * 2, model.linear(x))},
    "x itself": lambda _, x: x,
}


AS_EXPORTED = {"attention with a class token"}
"""Core ATen has rows and heads in one dimension there."""


@pytest.mark.parametrize(
    ("name", "core"), [(name, core) for name in PROVEN for core in (False, True) if not (core and name in AS_EXPORTED)]
)
def test_proven(name: str, core: bool, tmp_path: Path) -> None:
    """And each row has the answer that it has alone, whoever is beside it."""
    file = written(PROVEN[name], tmp_path, core=core)
    assert proof(file) == RowProof(True, "every operator treats rows one by one")

    backend = load(TORCH_EXPORT, file, layout=ROWS_FIRST)
    rows = np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32)
    alone = [backend.run({"x": rows[place : place + 1]}) for place in range(2)]
    rows[2] = np.nan
    together = backend.run({"x": rows})
    for output, array in together.items():
        for place in range(2):
            np.testing.assert_allclose(array[place], alone[place][output][0], rtol=1e-5, atol=1e-6)


def counted(_: Any, x: Any) -> Any:
    """Each row is repeated as often as there are rows."""
    return x[:, :1].expand(x.shape[0], x.shape[0]).sum(1)


def remembered(_: Any, x: Any) -> Any:
    """A number that is read from the rows."""
    return x * x.max().item()


NOT_PROVEN: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a sum of all rows": (lambda _, x: x + x.sum(0), "sum works along dimension 0, the rows'"),
    "a mean of everything": (lambda _, x: x - x.mean(), "mean works along dimension 0, the rows'"),
    "softmax of rows": (lambda _, x: x.softmax(0), "softmax works along dimension 0, the rows'"),
    "a running sum": (lambda _, x: x.cumsum(0), "cumsum works along dimension 0, the rows'"),
    "the other way round": (lambda _, x: x.flip(0), "flip works along dimension 0, the rows'"),
    "rows times rows": (lambda _, x: x @ x.T @ x, "numpy_T"),
    "transposed": (lambda _, x: x.transpose(0, 1).softmax(0).transpose(0, 1), "transpose is not known to keep rows"),
    "attention among rows": (
        lambda model, x: model.across(*3 * [x.unsqueeze(1)])[0][:, 0],
        "is not known to keep rows",
    ),
    "the number of rows": (lambda _, x: x / x.shape[0], "div uses the number of rows"),
    "places of rows": (
        lambda _, x: x + torch.arange(x.shape[0]).unsqueeze(1),
        "nothing is known of the operator arange",
    ),
    "as many copies as rows": (counted, "expand makes another dimension as large as there are rows"),
    "the first row": (lambda _, x: x + x[0], "select works along dimension 0, the rows'"),
    "the row before": (lambda _, x: functional.pad(x, (0, 0, 1, 0))[:-1], "is not known to keep rows"),
    "one row of all": (lambda _, x: x.reshape(1, -1), "reshape does not keep the rows in dimension 0"),
    "normalised over all": (lambda _, x: functional.batch_norm(x, None, None, training=True), "it mixes rows"),
    "dropout": (lambda _, x: functional.dropout(x, training=True), "dropout draws random numbers"),
    "noise": (lambda _, x: x + torch.randn_like(x), "randn_like draws random numbers"),
    "a constant": (lambda model, x: (x * 2, model.table * 2), "an output does not depend on the inputs"),
    "a number of the rows": (remembered, "max works along dimension 0, the rows'"),
    "an operator that no rule knows": (lambda _, x: torch.linalg.svd(x.view(-1, 2, 2)).S, "linalg_svd"),
}


@pytest.mark.parametrize("name", NOT_PROVEN)
def test_not_proven(name: str, tmp_path: Path) -> None:
    """The reason is told; what draws random numbers, and what surely mixes rows, is marked."""
    function, reason = NOT_PROVEN[name]
    found = proof(written(function, tmp_path))

    assert not found.independent
    assert reason in found.reason
    assert found.random == ("random" in found.reason)
    assert found.dependent == ("the rows'" in found.reason or "mixes rows" in found.reason)


def test_batch_norm_as_for_training(tmp_path: Path) -> None:
    """A frequent fault: the module was exported without `eval()`."""
    file = tmp_path / "model.pt2"
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    rows = {"input": {0: torch.export.Dim("rows")}}
    file.write_bytes(exported(module, (torch.randn(3, 4),), rows, training=True))

    described = describe_build(TORCH_EXPORT, file, model="m")
    assert described.joinable.verdict == "unproven"
    assert described.joinable.reason.endswith("was it exported as for training?")


def test_rows_elsewhere_are_not_proven(tmp_path: Path) -> None:
    """The proof is about dimension 0."""
    inspected = TORCH_EXPORT.inspect(written(PROVEN["x itself"], tmp_path), "m", TORCH_EXPORT.options())
    assert inspected.prove({"x": 1}) == RowProof(
        False, "of a program of torch.export rows are proven in dimension 0 only"
    )
