"""The proof of a replica: every build that the graph proves is tried, once for each content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import edge_case_models
import numpy as np
import onnx_models
import pytest
from joining_backends import Made, loaded, refusing, shifted

from serve_app.backends.backend import Backend, SessionLost
from serve_app.backends.joining.verdict_store import VerdictStore
from serve_app.backends.samples import Samples
from serve_app.errors import InferenceFailed
from serve_app.payloads import Joinable, ModelSignature, Tensors, TensorSpec
from serve_app.processors.processor import Processor
from serve_app.replica.proof import ProofContext, prove_replica, try_requests

PROVEN = Joinable("proven", "by the graph")
X = Samples(ModelSignature((TensorSpec("x", "FP32", (-1, 4)),), ()), (), {})
MakeModel = Callable[[onnx_models.Kind], Path]


class Padding:
    """A processor of numbers in two sizes, as far as a proof asks it."""

    buckets = (4, 8)
    bucket_invariant = True

    def example(self, rows: int, bucket: int) -> Tensors:
        """Ones of that size."""
        return {"x": np.ones((rows, bucket), np.float32)}

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """Zeros behind, up to that size."""
        return {"x": np.pad(tensors["x"], [(0, 0), (0, bucket - tensors["x"].shape[1])])}


def prove(
    backends: dict[str, Any],
    verdicts: dict[str, Joinable],
    proofs: ProofContext | None = None,
    processor: Any = None,
    samples: Samples = X,
    examples: dict[str, Tensors] | None = None,
) -> dict[str, Joinable]:
    """What `prove_replica` finds, with as much time as it takes."""
    return prove_replica(
        proofs or ProofContext("m", 8, budget_s=1e9),
        cast("dict[str, Backend]", backends),
        verdicts,
        cast("Processor | None", processor),
        samples,
        examples or {},
    )


def test_each_build_has_a_verdict_of_its_own() -> None:
    """Those that the graph leaves open are tried; of the others nothing is run."""
    backends = {"": Made(shifted(np.float32, 0.0)), "light": Made(shifted(np.float32, 1.0)), "off": Made(dict)}
    off = Joinable("off", "", rows=False)
    found = prove(backends, {"": PROVEN, "light": PROVEN, "off": off})
    assert ({"": "exact", "light": "dependent", "off": "off"}, []) == (
        {variant: verdict.verdict for variant, verdict in found.items()},
        backends["off"].runs,
    )


def test_what_was_found_is_found_again(tmp_path: Path) -> None:
    """The next start runs nothing for it, and another key has another record."""
    answers = shifted(np.float32, 2.0**-18)
    kept = ProofContext("m", 8, None, 1e9, VerdictStore(tmp_path), {"": "key"})
    first, again, other = Made(answers), Made(answers), Made(answers)
    verdict = prove({"": first}, {"": PROVEN}, kept)
    assert ("close", verdict) == (verdict[""].verdict, prove({"": again}, {"": PROVEN}, kept))
    prove({"": other}, {"": PROVEN}, kept._replace(keys={"": "another"}))
    assert (True, [], True) == (bool(first.runs), again.runs, bool(other.runs))


def test_a_model_that_takes_none_of_our_inputs_stays_untried(tmp_path: Path) -> None:
    """Nothing is kept of it, and its requests are run one by one until some can serve."""
    backend = loaded(edge_case_models.ids(tmp_path / "ids" / "model.onnx"))
    proofs = ProofContext("m", 8, None, 1e9, VerdictStore(tmp_path / "kept"), {"": "key"})
    ids = Samples(backend.signature, (), {})
    found = prove({"": backend}, {"": PROVEN}, proofs, samples=ids)[""]
    assert ("proven", False, None) == (found.verdict, found.joins, proofs.find(""))
    assert "there is no input to try it with: the model failed on this input" in found.reason
    known = {"ids": np.array([[1001], [1002]], np.int64)}
    assert "exact" == prove({"": backend}, {"": PROVEN}, proofs, samples=ids, examples={"": known})[""].verdict
    assert "exact" == getattr(proofs.find(""), "verdict", None)


def test_the_rows_of_requests_can_serve(tmp_path: Path) -> None:
    """As they are, in turns: ids keep their range."""
    backend = loaded(edge_case_models.ids(tmp_path / "ids" / "model.onnx"))
    proofs = ProofContext("m", 8, None, 1e9, VerdictStore(tmp_path / "kept"), {"": "key"})
    rows = {"ids": np.array([[1001, 1007], [993, 1000], [1002, 1003]], np.int64)}
    before = PROVEN._replace(equal_sizes=((("ids", 1), ("ids", 1)),), padding="close")
    found = try_requests(proofs, "", backend, rows, before)
    assert ("exact", found) == (found.verdict, proofs.find(""))
    assert (before.equal_sizes, before.padding) == (found.equal_sizes, found.padding)


@pytest.mark.parametrize(
    ("weight", "verdict", "pads", "told"),
    [
        (0.0, "exact", True, "the same bit for bit; padding changes nothing"),
        (2.0**-18, "close", True, "padding to the size of others changes output 'y' by 3.8e-06 of its largest value"),
        (1.0, "exact", False, "so only requests of one size share runs"),
    ],
    ids=["nothing", "a little", "all"],
)
def test_padding_to_the_size_of_others_is_tried_too(weight: float, verdict: str, pads: bool, told: str) -> None:
    """Where it changes answers, requests are joined with those of their own size only."""

    def answer(inputs: Tensors) -> Tensors:
        rows, width = inputs["x"].shape
        return {"y": np.full((rows, 1), 1.0 + weight * (width > 4), np.float32)}

    found = prove({"": Made(answer)}, {"": PROVEN}, processor=Padding())[""]
    assert (verdict, pads, True) == (found.verdict, found.pads, found.reason.endswith(told)), found


@pytest.mark.parametrize("verdict", ["dependent", "unproven", "whole", "off"])
@pytest.mark.parametrize(("weight", "padding"), [(0.0, "exact"), (1.0, "changes")])
def test_padding_is_tried_whatever_is_known_of_rows(verdict: str, weight: float, padding: str) -> None:
    """One row at a time; the verdict on rows stays."""

    def answer(inputs: Tensors) -> Tensors:
        rows, width = inputs["x"].shape
        assert rows == 1 or width == 4  # what the integers may be is learnt with two
        return {"y": np.full((rows, 1), 1.0 + weight * (width > 4), np.float32)}

    found = prove({"": Made(answer)}, {"": Joinable(verdict, "said", rows=False)}, processor=Padding())[""]
    assert (verdict, False, padding) == (found.verdict, found.joins, found.padding)


def test_what_could_not_be_tried_is_not_padded_and_not_kept(tmp_path: Path) -> None:
    """The next start tries again."""
    kept = ProofContext("m", 8, None, 1e9, VerdictStore(tmp_path), {"": "key"})
    refuses = Made(refusing(lambda inputs: inputs["x"].shape[1] > 4))
    found = prove({"": refuses}, {"": PROVEN}, kept, processor=Padding())[""]
    assert ("exact", "untried", False, None) == (found.verdict, found.padding, found.pads, kept.find(""))


def test_a_model_of_certain_sizes_is_padded_to_them() -> None:
    """It does not run a length between two of them."""

    class Windows(Padding):
        """Makes an example of any length."""

    takes = Made(refusing(lambda inputs: inputs["x"].shape[1] % 4 > 0))
    found = prove({"": takes}, {"": PROVEN}, processor=Windows())[""]
    assert ("exact", "sizes", False) == (found.verdict, found.padding, found.pads)


def test_an_optimizer_that_is_wrong_stays_disabled_at_the_next_start(tmp_path: Path) -> None:
    """Its name is kept with the verdict: answers are right from the first request on."""
    kept = ProofContext("m", 8, None, 1e9, VerdictStore(tmp_path / "kept"), {"": "key"})
    file = onnx_models.zero_padded_pooling(tmp_path / "model.onnx")
    x = -np.abs(np.random.default_rng(1).standard_normal((2, 2, 8, 8))).astype(np.float32)
    found = []
    for _ in range(2):
        backend = loaded(file)
        found.append(prove({"": backend}, {"": PROVEN}, kept, samples=Samples(backend.signature, (), {}))[""])
        assert np.array_equal(onnx_models.zero_padded_pooled(x), backend.run({"x": x})["y"])
    assert found[0] == found[1]
    assert "exact" == found[0].verdict
    assert bool(found[0].disabled_optimizers) is ("disabled: Pad_Fusion" in found[0].reason)


@pytest.mark.parametrize("known", [True, False], ids=["with an example", "without"])
def test_a_session_that_ends_in_the_proof_is_told(known: bool) -> None:
    """At whichever run: what it would say to a later one does not hide it. There is no verdict on it."""
    signature = ModelSignature((TensorSpec("x", "FP32", (-1, 4)), TensorSpec("id", "INT64", (-1,))), ())
    samples = Samples(signature, (), {})
    example: Tensors = {"x": np.ones((1, 4), np.float32), "id": np.zeros(1, np.int64)}
    examples = {"": example} if known else {}
    whole = Made(lambda inputs: {"y": inputs["x"]})
    prove({"": whole}, {"": PROVEN}, samples=samples, examples=examples)
    assert whole.runs
    for last in range(len(whole.runs)):
        with pytest.raises(SessionLost):
            prove({"": _ending(last)}, {"": PROVEN}, samples=samples, examples=examples)


def _ending(last: int) -> Made:
    """One that ends after so many runs."""

    def answer(inputs: Tensors) -> Tensors:
        if len(made.runs) == last + 1:
            raise SessionLost("killed")
        if len(made.runs) > last:
            raise InferenceFailed("closed")
        return {"y": inputs["x"]}

    made = Made(answer)
    return made
