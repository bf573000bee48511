"""A worker that gets requests of many texts of different lengths."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_models
import pytest
from local_server import make_tokenizer
from onnx import TensorProto, helper
from runtime_harness import batch_same_turn, run_to_the_end, until

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.errors import InferenceFailed
from serve_app.payloads import (
    NOT_IN_TIME,
    RETURNED,
    Bundle,
    BundleResult,
    Embeddings,
    Execution,
    Failure,
    Joinable,
    Success,
    Tensors,
    Texts,
    WireEntry,
)
from serve_app.processors import create_processor
from serve_app.processors.embedding import EmbeddingProcessor
from serve_app.replica.joining import Joining
from serve_app.replica.proof import ProofContext
from serve_app.replica.worker import Worker
from serve_app.scheduling.settings import ModelScheduling

LONGEST = 256
MAX_ROWS = 16
_WIDTH, _WIDE = 128, 1024


def write_model(folder: Path, *, pooled: bool, masked: bool = True) -> Path:
    """A text model that costs in proportion to tokens: two layers for each, and their mean or each of them."""
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["tokens"]),
        node("MatMul", ["tokens", "up"], ["high"]),
        node("Relu", ["high"], ["rectified"]),
        node("MatMul", ["rectified", "down"], ["hidden"]),
        node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask", "last"], ["mask3"]),
        node("Mul", ["hidden", "mask3"], ["kept"]),
        node("ReduceSum", ["kept", "middle"], ["total"], keepdims=0),
        node("ReduceSum", ["mask", "middle"], ["count"], keepdims=1),
        node("Div", ["total", "count"], ["embedding"]),
    ]
    if not masked:
        nodes[4:] = [node("ReduceMean", ["hidden"], ["embedding"], axes=[1], keepdims=0)]
    random = np.random.default_rng(1)
    constants: dict[str, npt.NDArray[Any]] = {
        "table": random.normal(size=(20, _WIDTH)).astype(np.float32),
        "up": random.normal(size=(_WIDTH, _WIDE)).astype(np.float32) / _WIDTH**0.5,
        "down": random.normal(size=(_WIDE, 8)).astype(np.float32) / _WIDE**0.5,
        "last": np.array([2], np.int64),
        "middle": np.array([1], np.int64),
    }
    outputs: list[tuple[str, int, onnx_models.Shape | None]] = (
        [("embedding", TensorProto.FLOAT, ["rows", 8])]
        if pooled
        else [("hidden", TensorProto.FLOAT, ["rows", "length", 8])]
    )
    make_tokenizer(folder / "tokenizer.json")
    return onnx_models.write(
        folder / "model.onnx",
        nodes if pooled else nodes[:4] + nodes[4:5],
        [(name, TensorProto.INT64, ["rows", "length"]) for name in ("input_ids", "attention_mask")[: 1 + masked]],
        outputs,
        constants,
    )


class Noting:
    """A loaded model that notes what it runs, and runs it when it is let to.

    Attributes:
        masks: Of every run.
        fails_at: It fails on texts of so many tokens.
    """

    device = "cpu"

    def __init__(self, backend: OnnxBackend) -> None:
        self._backend = backend
        self.signature = backend.signature
        self.masks: list[npt.NDArray[Any]] = []
        self.fails_at = 0
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Rows and tokens of every run."""
        return [mask.shape for mask in self.masks]

    def load(self) -> None:
        pass

    def run(self, inputs: Tensors) -> Tensors:
        mask = inputs.get("attention_mask", np.ones_like(inputs["input_ids"]))
        if mask.shape[1] == self.fails_at:
            raise InferenceFailed("too long for me")
        self.masks.append(mask)
        self.begun.set()
        assert self.go.wait(30.0)
        return self._backend.run(inputs)

    run_whole = run

    def close(self) -> None:
        self._backend.close()


class Served:
    """A worker of the model, and how the model answers one text alone."""

    def __init__(
        self,
        folder: Path,
        *,
        pooled: bool = True,
        masked: bool = True,
        token_s: float = 0.0,
        fixed_s: float = 1e-4,
        pads: bool = True,
        verdict: Joinable | None = None,
        verify: float = 0.0,
        processor: type[EmbeddingProcessor] = EmbeddingProcessor,
    ) -> None:
        backend = OnnxBackend(
            OnnxSettings("m", write_model(folder, pooled=pooled, masked=masked), device="cpu", intra_op_threads=1)
        )
        backend.load()
        made = create_processor("feature-extraction", backend.signature, folder, {"max_length": LONGEST})
        assert isinstance(made, EmbeddingProcessor)
        self.backend = backend
        self.processor = processor(made.task, made.tokenizer, made.settings)
        self.model = Noting(backend)
        warm_up = [
            Execution(rows, bucket, fixed_s + token_s * rows * bucket)
            for rows in (1, MAX_ROWS)
            for bucket in (8, LONGEST)
        ]
        self.joining = Joining("m", {"": verdict or Joinable("close", "", padding="close" if pads else "changes")})
        self.worker = Worker(
            scheduling=ModelScheduling("m", MAX_ROWS, slo_s=60.0),
            backends={"": self.model},
            processor=self.processor,
            preprocess_threads=2,
            batch=batch_same_turn,
            warm_up=warm_up if token_s else [],
            joining=self.joining,
            proofs=ProofContext("m", MAX_ROWS),
            verify=verify,
        )

    def alone(self, texts: Sequence[str]) -> list[list[float]]:
        """What the model makes of each text by itself, not padded."""
        vectors = []
        for text in texts:
            inputs = self.processor.preprocess(Texts([text], {}))
            vectors += self.processor.postprocess(Texts([text], {}), self.backend.run(inputs), inputs).vectors.tolist()
        return vectors


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Makes a worker of the model and closes it."""
    made: list[Served] = []

    def serve_model(**options: Any) -> Served:
        made.append(Served(tmp_path, **options))
        return made[-1]

    yield serve_model
    for served in made:
        served.model.go.set()
        served.worker.close()


def text(words: int, seed: int = 0) -> str:
    """So many words; with ``[CLS]`` one token more."""
    return " ".join(np.random.default_rng([words, seed]).choice(["the", "cat", "dog", "sat", "mat", "sun"], words))


def texts(count: int, seed: int = 0) -> list[str]:
    """Most of them short, a few long, in any order."""
    words = np.random.default_rng(seed).geometric(0.05, count).tolist()
    return [text(each, at) for at, each in enumerate([*words[2:], 1, 200])]


def entry(*these: Any, budget_s: float = 60.0, priority: int = 2) -> WireEntry:
    """A request of these texts."""
    return WireEntry(priority, budget_s, len(these), "", Texts(list(these), {}))


def tokens(these: Sequence[str]) -> int:
    """What the model reads of texts."""
    return sum(1 + len(each.split()) for each in these)


def embeddings(answer: Any) -> Embeddings:
    """What a request was answered with."""
    assert isinstance(answer, Success)
    assert isinstance(answer.value, Embeddings)
    return answer.value


def vectors(answer: Any) -> Any:
    """The vectors of an answer, to compare with."""
    return pytest.approx(embeddings(answer).vectors, rel=1e-3, abs=1e-5)


def ran(result: BundleResult) -> list[tuple[int, int]]:
    """The runs that carried a bundle."""
    return [(execution.rows, execution.bucket) for execution in result.executions]


@pytest.mark.parametrize("pooled", [True, False], ids=["a vector per text", "a vector per token"])
@pytest.mark.parametrize("pads", [True, False])
async def test_every_text_is_answered_as_if_alone(serve: Serve, pooled: bool, pads: bool) -> None:
    """One request of many texts by itself, and two beside single ones, of their own bundle and of others."""
    served = serve(pooled=pooled, token_s=1e-5, pads=pads)
    many, more, single = texts(40), texts(16, 1), [text(words, 9) for words in (1, 3, 30, 90)]

    (answer,) = (await served.worker.run(Bundle([entry(*many)]))).results
    assert np.array(served.alone(many)) == vectors(answer)
    assert tokens(many) == embeddings(answer).tokens
    together = await asyncio.gather(
        run_to_the_end(served.worker, Bundle([entry(*many), entry(*more), *map(entry, single[:2])])),
        *(served.worker.run(Bundle([entry(each)])) for each in single[2:]),
    )
    answers = [answer for result in together for answer in result.results]
    for asked, answer in zip([many, more, *([each] for each in single)], answers, strict=True):
        assert np.array(served.alone(asked)) == vectors(answer)
        assert tokens(asked) == embeddings(answer).tokens


@pytest.mark.parametrize("masked", [True, False], ids=["with a mask", "without"])
@pytest.mark.parametrize("rows", [True, False])
async def test_texts_of_a_model_that_mixes_rows_run_one_by_one(serve: Serve, masked: bool, rows: bool) -> None:
    """Each as long as it is."""
    verdict = Joinable("dependent", "", rows=rows, padding="changes")
    served = serve(token_s=1e-5, verdict=verdict, masked=masked)
    many = texts(12)
    (answer,) = (await served.worker.run(Bundle([entry(*many)]))).results
    assert np.array(served.alone(many)) == vectors(answer)
    assert tokens(many) == embeddings(answer).tokens
    assert sorted((1, len(each.split()) + 1) for each in many) == sorted(served.model.shapes)


async def test_padding_that_changes_an_answer_in_service_ends_and_rows_go_on_being_joined(serve: Serve) -> None:
    """Where the experiment did not see it: a request that was padded is run again as it came."""
    served = serve(masked=False, verify=1.0)
    bundle = [entry(text(words)) for words in (2, 9, 3, 8)]
    for _ in range(100):
        await served.worker.run(Bundle(list(bundle)))
        verdict = served.joining.of("")
        if not verdict.pads:
            break
    assert ("close", "changes", 0.0) == (verdict.verdict, verdict.padding, verdict.deviation)
    assert "of a request that was padded differed" in verdict.reason
    answers = (await served.worker.run(Bundle(list(bundle)))).results
    for words, answer in zip((2, 9, 3, 8), answers, strict=True):
        assert np.array(served.alone([text(words)])) == vectors(answer)


async def test_no_text_is_padded_to_the_longest(serve: Serve) -> None:
    """Each row runs once, in far fewer tokens than the rectangle has; the result tells every run."""
    served = serve(token_s=1e-5)
    many = texts(40)

    result = await served.worker.run(Bundle([entry(*many)]))

    shapes = served.model.shapes
    assert len(many) == sum(rows for rows, _ in shapes)
    assert sorted(ran(result)) == sorted(shapes)
    longest = max(tokens([each]) for each in many)
    assert tokens(many) <= sum(rows * width for rows, width in shapes) < len(many) * longest / 2


async def test_where_padding_changes_answers_rows_of_a_run_have_one_length(serve: Serve) -> None:
    """Not one of them is padded, also not beside others."""
    served = serve(token_s=1e-5, pads=False)
    many = [*texts(40), *(text(words, 7) for words in (5, 5, 6, 7))]

    await asyncio.gather(
        served.worker.run(Bundle([entry(*many)])), *(served.worker.run(Bundle([entry(text(6, at))])) for at in range(4))
    )

    assert all(mask.all() for mask in served.model.masks)
    assert len(many) + 4 == sum(len(mask) for mask in served.model.masks)


async def test_a_request_without_the_time_for_all_of_its_rows_does_not_begin(serve: Serve) -> None:
    """It ends as one, where that is seen at once; what is beside it runs."""
    served = serve(token_s=0.02)
    many, other = [text(words) for words in range(100, 116)], text(3)

    result = await served.worker.run(Bundle([entry(*many, budget_s=20.0), entry(other)]))

    assert result.results[0] == NOT_IN_TIME
    assert np.array(served.alone([other])) == vectors(result.results[1])
    assert [(1, 8)] == served.model.shapes


async def test_a_request_that_is_in_time_as_one_run_is_not_refused_for_its_pieces(serve: Serve) -> None:
    """Where most of a run is fixed, one by one they would take seventeen times as long: they share runs."""
    served = serve(fixed_s=1.0, token_s=1e-5)
    many = [text(words) for words in range(8, 144, 8)]

    (answer,) = (await served.worker.run(Bundle([entry(*many, budget_s=8.0)]))).results

    assert np.array(served.alone(many)) == vectors(answer)


async def test_a_request_whose_time_is_over_does_not_begin(serve: Serve) -> None:
    """As with one text."""
    served = serve(token_s=1e-5)
    (answer,) = (await served.worker.run(Bundle([entry(*texts(16), budget_s=-1.0)]))).results
    assert isinstance(answer, Failure)
    assert ("deadline_exceeded", []) == (answer.code, served.model.shapes)


async def _occupied(served: Served) -> asyncio.Future[BundleResult]:
    """Let a text have the session until the model is let go."""
    served.model.go.clear()
    first = asyncio.ensure_future(served.worker.run(Bundle([entry(text(2))])))
    assert await asyncio.to_thread(served.model.begun.wait, 30.0)
    return first


async def test_a_recall_takes_all_pieces_from_the_gate(serve: Serve) -> None:
    """Its answer does not wait for what runs, and none of them does when that has ended."""
    served = serve(token_s=0.001)
    first = await _occupied(served)
    bundle = Bundle([entry(*[text(words) for words in range(8, 128, 8)])], recalled=set())
    asked = asyncio.ensure_future(served.worker.run(bundle))
    await until(lambda: "15 bundles at the gate" in repr(served.worker))

    assert isinstance(bundle.recalled, set)
    bundle.recalled.add(0)
    served.worker.recall(bundle)

    assert [RETURNED] == (await asked).results
    assert "0 bundles at the gate" in repr(served.worker)
    served.model.go.set()
    assert isinstance((await first).results[0], Success)
    assert [(1, 8)] == served.model.shapes


async def test_pieces_that_are_recalled_on_their_way_to_the_gate_never_run(serve: Serve) -> None:
    """The recall comes in the turn of the event loop in which the request is cut."""
    recall: list[Callable[[], None]] = []

    class Cutting(EmbeddingProcessor):
        def cut(self, tensors: Tensors, rows: Sequence[int], length: int) -> Tensors:
            asyncio.get_running_loop().call_soon(recall[0])
            return super().cut(tensors, rows, length)

    served = serve(token_s=1e-5, processor=Cutting)
    bundle = Bundle([entry(*texts(16)), entry(text(4))], recalled={1})

    def leave() -> None:
        assert isinstance(bundle.recalled, set)
        bundle.recalled.add(0)
        served.worker.recall(bundle)

    recall.append(leave)
    assert [RETURNED, RETURNED] == (await served.worker.run(bundle)).results
    assert [] == served.model.shapes


async def test_whoever_leaves_takes_all_pieces_along(serve: Serve) -> None:
    """A request that is cancelled while its pieces wait leaves the session to others."""
    served = serve(token_s=0.001)
    first = await _occupied(served)
    leaving = asyncio.ensure_future(served.worker.run(Bundle([entry(*[text(words) for words in range(8, 128, 8)])])))
    await until(lambda: "15 bundles at the gate" in repr(served.worker))

    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    served.model.go.set()

    assert isinstance((await first).results[0], Success)
    assert isinstance((await served.worker.run(Bundle([entry(text(20))]))).results[0], Success)
    assert [(1, 8), (1, 24)] == served.model.shapes


async def test_what_is_urgent_goes_between_two_pieces(serve: Serve) -> None:
    """It waits for the one that runs, and not for all of the request."""
    served = serve(token_s=0.001)
    first = await _occupied(served)
    many = asyncio.ensure_future(served.worker.run(Bundle([entry(*[text(words) for words in (200, 150, 100)])])))
    await until(lambda: "3 bundles at the gate" in repr(served.worker))
    urgent = asyncio.ensure_future(served.worker.run(Bundle([entry(text(30), priority=1)])))
    await until(lambda: "4 bundles at the gate" in repr(served.worker))
    served.model.go.set()
    await asyncio.gather(first, many, urgent)

    assert [(1, 8), (1, 32), (1, 208), (1, 160), (1, 104)] == served.model.shapes


async def test_a_text_that_is_none_fails_its_request_alone(serve: Serve) -> None:
    """The others of the bundle are answered, of many texts or of one."""
    served = serve(token_s=1e-5)
    many, single = texts(16), text(5)

    result = await run_to_the_end(served.worker, Bundle([entry(*many[:9], 7), entry(*many), entry(single)]))

    assert result.results[0] == Failure("invalid_request", "inputs[9]: expected text, got int")
    assert np.array(served.alone(many)) == vectors(result.results[1])
    assert np.array(served.alone([single])) == vectors(result.results[2])


@pytest.mark.parametrize("fails_at", [208, 104, 8], ids=["the longest", "another", "the shortest"])
async def test_a_piece_that_fails_fails_its_request_alone(serve: Serve, fails_at: int) -> None:
    """Those who have no text of that length are answered."""
    served = serve(token_s=0.001)
    served.model.fails_at = fails_at
    many, single = [text(words) for words in (3, 100, 200)], text(30)

    result = await run_to_the_end(served.worker, Bundle([entry(*many), entry(single), entry(single, text(60))]))

    assert [Failure("inference_failed", "too long for me")] == result.results[:1]
    assert np.array(served.alone([single])) == vectors(result.results[1])
    assert np.array(served.alone([single, text(60)])) == vectors(result.results[2])


async def test_a_thousand_texts_are_one_request(serve: Serve) -> None:
    """All of them are answered, each in its place."""
    served = serve(token_s=1e-5)
    many = [text(1 + at % 12, at % 30) for at in range(1024)]

    (answer,) = (await served.worker.run(Bundle([entry(*many)]))).results

    assert np.array(served.alone(many)) == vectors(answer)


async def test_a_text_without_end_is_cut_and_pads_nobody(serve: Serve) -> None:
    """It has the most tokens that the model takes, and runs alone."""
    served = serve(token_s=1e-5)
    many = [*(text(3 + at, at) for at in range(15)), "cat " * 100_000]

    (answer,) = (await served.worker.run(Bundle([entry(*many)]))).results

    assert np.array(served.alone(many)) == vectors(answer)
    assert [(1, LONGEST)] == [shape for shape in served.model.shapes if shape[1] > 24]


async def test_an_empty_text_has_its_answer_or_its_error(serve: Serve, tmp_path: Path) -> None:
    """Its special tokens are something to compute on; without any, the message says which text it is."""
    served = serve(token_s=1e-5)
    many = [text(40), "", text(9)]
    (answer,) = (await served.worker.run(Bundle([entry(*many)]))).results
    assert np.array(served.alone(many)) == vectors(answer)

    bare = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "tokenizer.json").write_text(json.dumps({**bare, "post_processor": None}))
    made = create_processor("feature-extraction", served.backend.signature, tmp_path / "bare", {})
    worker = Worker(
        scheduling=ModelScheduling("bare", MAX_ROWS, slo_s=60.0),
        backends={"": served.backend},
        processor=made,
        preprocess_threads=1,
        batch=batch_same_turn,
    )
    (answer,) = (await worker.run(Bundle([entry(*many)]))).results
    assert answer == Failure("invalid_request", "inputs[1]: the text has no tokens")
    worker.close()
