"""Finds payloads that cost less than waking a thread, whatever their content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from serve_app.payloads import Media, Texts, text_length
from serve_app.processors.audio import AudioProcessor
from serve_app.processors.audio_decoder import most_samples
from serve_app.processors.embedding import EmbeddingProcessor
from serve_app.processors.image import ImageProcessor
from serve_app.processors.image_decoder import png_pixels
from serve_app.processors.processor import Processor
from serve_app.processors.text_classification import TextClassificationProcessor

IsQuick: TypeAlias = Callable[[Media | Texts], bool]
"""Whether `Processor.preprocess` and `Processor.postprocess` of a payload take about 0.2 ms at most."""

_PIXELS: Final = 128 * 128
_SAMPLES: Final = 64 * 1024
_CHARACTERS: Final = 512
_CHARACTERS_OF_A_TEXT: Final = 32
"""So many cost as much as a text does by itself."""


def quick_of(processor: Processor | None) -> IsQuick | None:
    """The test for quick payloads, if any is; never for custom code."""
    kind = _KINDS.get(type(processor))
    return None if kind is None else kind(processor)


def _of_image(processor: ImageProcessor) -> IsQuick | None:
    height, width = processor.settings.size
    # A long picture whose shorter edge is resized has many pixels before its centre is cut out.
    if height * width > _PIXELS or processor.settings.resize in {"crop", "cover"}:
        return None
    return lambda payload: isinstance(payload, Media) and png_pixels(payload.content) <= _PIXELS


def _of_audio(processor: AudioProcessor) -> IsQuick | None:
    if processor.settings.spectrogram is not None:
        return None
    rate = processor.settings.sampling_rate
    return lambda payload: isinstance(payload, Media) and most_samples(payload.content, rate) <= _SAMPLES


def _of_text(_: EmbeddingProcessor | TextClassificationProcessor) -> IsQuick:
    return lambda payload: (
        isinstance(payload, Texts)
        and all(isinstance(text, str | list) for text in payload.texts)
        and text_length(payload) + len(payload.texts) * _CHARACTERS_OF_A_TEXT <= _CHARACTERS
        and not any(isinstance(value, str | list) for value in payload.parameters.values())
    )


_KINDS: Final[dict[type, Callable[[Any], IsQuick | None]]] = {
    ImageProcessor: _of_image,
    AudioProcessor: _of_audio,
    EmbeddingProcessor: _of_text,
    TextClassificationProcessor: _of_text,
}
"""By the very class: one that derives from these is other code."""
