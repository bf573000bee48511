"""Options under ``processor:``, per task.

All are optional: defaults come from the Hugging Face files beside the model and from its signature. Options take
precedence over files.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator

from serve_app.config.problems import short_repr

MOST_PIXELS = 178_956_970
"""Above this Pillow itself refuses to decode, whatever the configuration says."""
DEFAULT_REDUCING_GAP = 0.0
"""Every pixel, as the libraries that train models decode them. Measured: see docs/benchmarks/preprocessing.md."""

Activation: TypeAlias = Literal["softmax", "sigmoid", "none"]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
PositiveFloat: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FiniteFloat: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


class Options(BaseModel):
    """Base of every task's options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output: str | None = Field(None, description="Name of the model's output to read; needed only if it has several.")
    ignore_keys: list[str] = Field(
        [],
        description="Keys of the files beside the model that are not understood and change nothing that it gets.",
    )


class ClassificationOptions(Options):
    """Options of every task that answers with labels."""

    labels: str | list[str] | None = Field(
        None,
        description="The class names in the order of the output, or a text file in the model's folder, one a line.",
    )
    top_k: Positive | None = Field(None, description="How many labels an answer holds if the request does not say.")
    activation: Activation | None = Field(None, description="What turns the model's output into scores.")


class ImageOptions(ClassificationOptions):
    """Options of ``image-classification``."""

    size: Positive | tuple[Positive, Positive] | None = Field(
        None, description="Height and width that the model takes, pixels; one number for a square."
    )
    mean: FiniteFloat | list[FiniteFloat] | None = Field(
        None, description="Subtracted from pixels of 0 to 1; one number, or one per channel, red first."
    )
    std: PositiveFloat | list[PositiveFloat] | None = Field(
        None, description="Divides pixels after the mean is subtracted; one number, or one per channel, red first."
    )
    scale: PositiveFloat | None = Field(
        None, description="Multiplies pixels of 0 to 255 first; 1/255 unless the model takes UINT8."
    )
    resample: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] | None = Field(
        None, description="Filter for resizing; bilinear by default."
    )
    resize: Literal["squash", "crop"] | None = Field(
        None, description="squash: to exactly the size. crop: the shorter edge first, then the centre."
    )
    edge: Positive | None = Field(None, description="Length of the shorter edge before the centre is cut out, pixels.")
    crop_margin: Literal["floor", "round"] | None = Field(
        None,
        description="Where the centre is if the margin is odd: floor as in transformers, round as in torchvision and"
        " timm; floor by default.",
    )
    channel_order: Literal["RGB", "BGR"] | None = Field(
        None, description="BGR for models that take blue first; RGB by default."
    )
    image_processor: str | None = Field(
        None,
        description="The image processor of transformers whose rules and defaults apply, instead of the one that the"
        " files beside the model name, e.g. ViTImageProcessor.",
    )
    layout: Literal["NCHW", "NHWC"] | None = Field(None, description="Order of the axes, if the model does not tell.")
    max_pixels: Annotated[int, Field(ge=1, le=MOST_PIXELS)] = Field(
        64_000_000, description="Pictures with more pixels are refused before they are decoded."
    )
    reducing_gap: Annotated[float, Field(ge=1, le=64)] | Literal[0] = Field(
        DEFAULT_REDUCING_GAP,
        description="JPEG pictures are decoded smaller, which is faster and not exact, where so many times the pixels"
        " wanted are left per edge; 0, the default, decodes all of them.",
    )


class AudioOptions(ClassificationOptions):
    """Options of ``audio-classification``."""

    sampling_rate: Annotated[int, Field(ge=1_000, le=384_000)] | None = Field(
        None, description="Samples per second that the model takes."
    )
    max_seconds: PositiveFloat | None = Field(None, description="Longer audio is refused; 60 by default.")
    truncate: bool = Field(False, description="Use the first `max_seconds` of longer audio instead of refusing it.")
    normalize: bool | None = Field(None, description="Bring every sound to mean 0 and variance 1.")
    buckets: list[PositiveFloat] | None = Field(
        None, description="Lengths that sounds are padded to with silence, seconds."
    )


class TextOptions(Options):
    """Options that every text task has."""

    max_length: Positive | None = Field(None, description="Longer texts are cut to this many tokens.")
    buckets: list[Positive] | None = Field(None, description="Lengths that texts are padded to, tokens.")
    token_ids: Literal["accept", "refuse"] = Field(
        "accept",
        description="Whether clients may send token ids, which nobody can tell from another model's.",
    )


class EmbeddingOptions(TextOptions):
    """Options of ``feature-extraction`` and ``zero-shot-classification``."""

    pooling: Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "none"] | None = Field(
        None, description="How vectors of tokens become the vector of a text; none if the model does it."
    )
    normalize: bool | None = Field(None, description="Bring every vector to length 1.")
    hypothesis_template: str = Field(
        "This text is about {}.", description="Sentence that a candidate label is put into, at {}."
    )
    zero_shot_scale: PositiveFloat = Field(
        20.0, description="Multiplies cosines before they become zero-shot scores: higher is more decided."
    )
    zero_shot_midpoint: FiniteFloat = Field(0.1, description="With multi_label, the cosine whose score is 0.5.")


class TextClassificationOptions(TextOptions, ClassificationOptions):
    """Options of ``text-classification``."""


class CustomOptions(BaseModel):
    """What is said of a processor that is not the server's own: which options there are, its class knows."""

    model_config = ConfigDict(extra="allow", frozen=True, serialize_by_alias=True)

    class_: str | None = Field(
        None,
        alias="class",
        description="What makes tensors of media, and answers of tensors, instead of the task's own processor:"
        " `module:Class`, of what is installed, or `file.py:Class`, of a file beside the model.",
    )

    @field_validator("class_")
    @classmethod
    def _check_class(cls, name: str | None) -> str | None:
        module, _, attribute = (name or "a:B").rpartition(":")
        if not module.strip() or not all(part.isidentifier() for part in attribute.split(".")):
            raise ValueError(f"must be module:Class or file.py:Class, got {short_repr(name)}")
        return name

    @property
    def keys(self) -> dict[str, Any]:
        """The class's options, unchecked."""
        return dict(self.model_extra or {})

    @property
    def file(self) -> str | None:
        """The class's Python file, relative to the model's folder or absolute; ``None`` for a module."""
        module = (self.class_ or "").rpartition(":")[0]
        return module if module.endswith(".py") else None


ENTRY_POINTS: Final = "serve_app.processors"
"""The group of entry points in which packages name their processors, by task."""


def installed_tasks() -> frozenset[str]:
    """Tasks of installed packages' processors, without importing them."""
    return frozenset(entry_points(group=ENTRY_POINTS).names)


PROCESSOR_OPTIONS: dict[str, type[BaseModel]] = {
    "image-classification": ImageOptions,
    "audio-classification": AudioOptions,
    "feature-extraction": EmbeddingOptions,
    "text-classification": TextClassificationOptions,
    "zero-shot-classification": EmbeddingOptions,
}
"""The options of every task, by its Hugging Face name."""
