"""What is sent and answered, as types that msgspec makes JSON Schemas of.

Requests are the types that decode them, where one type does; what is decoded in parts, or written by hand because it is
fast, is described here. Answers may always hold more than is said.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec
import orjson
from msgspec import Meta

from serve_app.api.open_inference.wire import InferRequest
from serve_app.payloads import DTYPES

_TOKENS: Final = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_INPUTS: Final = [
    {"type": "string"},
    {"type": "array", "minItems": 1, "items": {"type": "string"}},
    _TOKENS,
    {"type": "array", "minItems": 1, "items": _TOKENS},
]
_Inputs = Annotated[msgspec.Raw, Meta(extra_json_schema={"anyOf": _INPUTS})]
_Positive = Annotated[int, Meta(ge=1)]
Datatype = Annotated[str, Meta(extra_json_schema={"enum": list(DTYPES)})]


class Error(msgspec.Struct):
    """What went wrong and what to do about it."""

    error: str
    code: str


class OpenAIErrorDetail(msgspec.Struct):
    """As OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(msgspec.Struct):
    """What went wrong and what to do about it."""

    error: OpenAIErrorDetail


class OutputTensor(msgspec.Struct):
    """One output, row by row. ``data`` is missing where it comes as binary behind the JSON."""

    name: str
    datatype: Datatype
    shape: list[int]
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class InferResponse(msgspec.Struct):
    """The outputs of a model."""

    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ServerMetadata(msgspec.Struct):
    """The server, and the extensions of the protocol that it knows."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(msgspec.Struct):
    """A tensor; -1 stands for a size that may vary."""

    name: str
    datatype: Datatype
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """A model's tensors."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelConfig(msgspec.Struct):
    """A model's configuration as Triton's clients read it."""

    name: str
    platform: str
    max_batch_size: int
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]


class ModelStatistics(msgspec.Struct):
    """What a model has done so far."""

    name: str
    version: str
    inference_count: int
    execution_count: int
    inference_stats: dict[str, Any]


class Statistics(msgspec.Struct):
    """One or all models."""

    model_stats: list[ModelStatistics]


class Live(msgspec.Struct):
    """The process works."""

    live: bool


class Ready(msgspec.Struct):
    """It can take work."""

    ready: bool


class ModelReady(msgspec.Struct):
    """The model can take work."""

    name: str
    ready: bool


class IndexEntry(msgspec.Struct):
    """One model of the repository."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class PredictParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of the tasks, and of the server. A model refuses those that its task does not have.

    Attributes:
        variant: Name of the model's variant to run.
        fallback: Whether a fallback may answer where the exact model would be too late.
    """

    top_k: _Positive | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    candidate_labels: list[str] | str | None = None
    hypothesis_template: str | None = None
    multi_label: bool | None = None
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right"] | None = None
    dimensions: _Positive | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: str | None = None
    source_sentence: str | None = None
    variant: str | None = None
    fallback: bool | None = None


class SentenceSimilarity(msgspec.Struct, forbid_unknown_fields=True):
    """Texts to compare with one."""

    source_sentence: str
    sentences: list[str]


class PredictRequest(PredictParameters, forbid_unknown_fields=True, kw_only=True):
    """Text, texts, or a file in base64 (plain or as a data URI); parameters beside them or in their own object."""

    inputs: str | list[str] | SentenceSimilarity
    parameters: PredictParameters | None = None


class Label(msgspec.Struct):
    """A class and its score."""

    label: str
    score: float


class ModelInformation(msgspec.Struct):
    """A model in the words of Hugging Face's servers."""

    model_id: str
    model_pipeline_tag: str | None
    max_client_batch_size: int
    max_batch_size: int
    variants: list[str]


class ServerInformation(msgspec.Struct):
    """The version, and the models."""

    version: str
    models: list[ModelInformation]


class OpenAIModel(msgspec.Struct):
    """A model as OpenAI's clients read it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    task: str


class OpenAIModels(msgspec.Struct):
    """All models."""

    object: Literal["list"]
    data: list[OpenAIModel]


class EmbeddingsRequest(msgspec.Struct):
    """A text, texts, or token ids. What OpenAI's clients send beside (``user``) is ignored."""

    model: str
    input: _Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: _Positive | None = None


class Embedding(msgspec.Struct):
    """One vector: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(msgspec.Struct):
    """Tokens that the model read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(msgspec.Struct):
    """Vectors in the order of the inputs."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: Usage


class Overview(msgspec.Struct):
    """What is served here."""

    name: str
    version: str
    models: list[dict[str, Any]]


_TYPES: Final[dict[str, Any]] = {
    "Error": Error,
    "OpenAIError": OpenAIError,
    "InferRequest": InferRequest[msgspec.Raw],
    "InferResponse": InferResponse,
    "ServerMetadata": ServerMetadata,
    "ModelMetadata": ModelMetadata,
    "ModelConfig": ModelConfig,
    "Statistics": Statistics,
    "Live": Live,
    "Ready": Ready,
    "ModelReady": ModelReady,
    "RepositoryIndex": list[IndexEntry],
    "PredictRequest": PredictRequest,
    "PredictParameters": PredictParameters,
    "Labels": list[Label],
    "LabelsOfTexts": list[list[Label]],
    "Vectors": list[list[float]],
    "Similarities": list[float],
    "ModelInformation": ModelInformation,
    "ServerInformation": ServerInformation,
    "OpenAIModel": OpenAIModel,
    "OpenAIModels": OpenAIModels,
    "EmbeddingsRequest": EmbeddingsRequest,
    "EmbeddingsResponse": EmbeddingsResponse,
    "Overview": Overview,
    "Status": dict[str, Any],
}
"""Everything that operations refer to, by the name that it has in the description."""


@cache
def components() -> dict[str, Any]:
    """JSON Schemas by name."""
    schemas, found = msgspec.json.schema_components(_TYPES.values(), ref_template=_REFERENCE + "{name}")
    named = found | {name: schema for name, schema in zip(_TYPES, schemas, strict=True) if "$ref" not in schema}
    # msgspec names the parameters of generic types, too: InferRequest_Raw_.
    plain: dict[str, Any] = orjson.loads(orjson.dumps(named).replace(b"_Raw_", b"").replace(b"[Raw]", b""))
    return plain


_REFERENCE: Final = "#/components/schemas/"


def reference(name: str) -> dict[str, Any]:
    """A reference to one of `components`."""
    assert name in _TYPES, name
    return {"$ref": _REFERENCE + name}
