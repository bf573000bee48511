"""The committed audio model, run on recordings of voices and speeds that it was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
import soundfile
import soxr

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "spoken-digits"
RECORDINGS = sorted((ROOT / "tests" / "data" / "speech").iterdir())
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def prepared(path: Path) -> NDArray[np.float32]:
    """Mono at 16 kHz, float32 (samples): the preprocessing that the model was trained for."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    waveform: NDArray[np.float32] = soxr.resample(samples.mean(axis=1), rate, 16_000).astype(np.float32)
    return waveform


def logits(session: Any, waveforms: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Run the graph on waveforms, with zeros behind the shorter ones; float32 (rows, 10)."""
    longest = max(waveform.size for waveform in waveforms)
    padded = np.stack([np.pad(waveform, (0, longest - waveform.size)) for waveform in waveforms])
    (result,) = session.run(["logits"], {"waveform": padded})
    answer: NDArray[np.float32] = result
    return answer


@pytest.fixture(scope="module")
def session() -> Any:
    """The committed model, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(MODEL / "1" / "model.onnx", options, providers=["CPUExecutionProvider"])


def test_words_of_unknown_voices_are_recognised(session: Any) -> None:
    """At least 95% of the recordings are right, whatever their format, sample rate and channels."""
    answers = [WORDS[int(logits(session, [prepared(path)]).argmax())] for path in RECORDINGS]
    wrong = [
        (path.name, answer)
        for path, answer in zip(RECORDINGS, answers, strict=True)
        if path.name.split("_")[0] != answer
    ]
    assert len(RECORDINGS) >= 50
    assert len(wrong) <= 0.05 * len(RECORDINGS), wrong


@pytest.mark.parametrize("zeros", [1, 79, 160, 4000, 16_000, 100_000])
def test_zeros_at_the_end_do_not_change_the_answer(session: Any, zeros: int) -> None:
    """Logits are the same for a recording and for the recording padded to any length."""
    for path in RECORDINGS[::6]:
        waveform = prepared(path)
        plain = logits(session, [waveform])
        padded = logits(session, [np.pad(waveform, (0, zeros))])
        np.testing.assert_allclose(padded, plain, atol=1e-3)


def test_rows_of_a_batch_do_not_see_each_other(session: Any) -> None:
    """A row's logits are the same alone and in a batch of recordings of other lengths and levels."""
    waveforms = [prepared(path) * gain for path, gain in zip(RECORDINGS[::5], np.geomspace(0.01, 1.0, 14), strict=True)]
    together = logits(session, [waveform.astype(np.float32) for waveform in waveforms])
    alone = np.concatenate([logits(session, [waveform.astype(np.float32)]) for waveform in waveforms])
    np.testing.assert_allclose(together, alone, atol=1e-3)


def test_the_gain_does_not_matter(session: Any) -> None:
    """A recording fifty times quieter gives the same logits."""
    waveform = prepared(RECORDINGS[0])
    quiet = (waveform * 0.02).astype(np.float32)
    np.testing.assert_allclose(logits(session, [quiet]), logits(session, [waveform]), atol=1e-2)


@pytest.mark.parametrize("samples", [0, 1, 159, 16_000])
def test_silence_of_any_length_has_finite_logits(session: Any, samples: int) -> None:
    """No recording is too short or too quiet for the graph."""
    answers = logits(session, [np.zeros(samples, np.float32)])
    assert answers.shape == (1, 10)
    assert bool(np.isfinite(answers).all())


def test_labels_name_every_logit(session: Any) -> None:
    """The label file has one line per output of the graph."""
    assert (MODEL / "labels.txt").read_text(encoding="utf-8").split() == WORDS
    assert [(entry.name, entry.type, entry.shape) for entry in session.get_inputs()] == [
        ("waveform", "tensor(float)", ["rows", "samples"])
    ]
    assert [(entry.name, entry.shape) for entry in session.get_outputs()] == [("logits", ["rows", 10])]
