"""A Python client of serve_app over HTTP, for code that waits (`Client`) and for asyncio (`AsyncClient`).

Deadlines, priorities, retries within a budget, tensors as numpy arrays, media in any form. Imports nothing of the
server. See docs/client.md.
"""

from serve_app_client.asynchronous import AsyncClient
from serve_app_client.calls import CallOptions
from serve_app_client.connection import ClientSettings
from serve_app_client.deadline import deadline
from serve_app_client.errors import (
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    InferenceFailed,
    InvalidAnswer,
    InvalidRequest,
    JobNotFound,
    MethodNotAllowed,
    ModelNotFound,
    ModelUnavailable,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    QueueFull,
    RateLimited,
    Refused,
    ServeAppClientError,
    ServerFault,
    SlowReader,
    StoreUnavailable,
    Unauthenticated,
    Unavailable,
    Unsupported,
    UnsupportedMedia,
)
from serve_app_client.hedging import Percentile
from serve_app_client.jobs import Job, JobOptions, JobResult, infer_item, pipeline_item, predict_item
from serve_app_client.results import (
    InferResult,
    Label,
    ModelMetadata,
    ModelSummary,
    PipelineResult,
    PredictResult,
    Served,
    StreamPart,
    TensorMetadata,
    Timings,
)
from serve_app_client.retry import Retry
from serve_app_client.sync import Client
from serve_app_client.wire import Priority, __version__

__all__ = [
    "AsyncClient",
    "CallOptions",
    "Client",
    "ClientSettings",
    "Conflict",
    "ConnectionFailed",
    "DeadlineExceeded",
    "InferResult",
    "InferenceFailed",
    "InvalidAnswer",
    "InvalidRequest",
    "Job",
    "JobNotFound",
    "JobOptions",
    "JobResult",
    "Label",
    "MethodNotAllowed",
    "ModelMetadata",
    "ModelNotFound",
    "ModelSummary",
    "ModelUnavailable",
    "NotFound",
    "PayloadTooLarge",
    "Percentile",
    "PermissionDenied",
    "PipelineResult",
    "PredictResult",
    "Priority",
    "QueueFull",
    "RateLimited",
    "Refused",
    "Retry",
    "ServeAppClientError",
    "Served",
    "ServerFault",
    "SlowReader",
    "StoreUnavailable",
    "StreamPart",
    "TensorMetadata",
    "Timings",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "UnsupportedMedia",
    "__version__",
    "deadline",
    "infer_item",
    "pipeline_item",
    "predict_item",
]
