"""A Python client of serve_app over HTTP, for code that waits (`Client`) and for asyncio (`AsyncClient`).

Deadlines, priorities, retries within a budget, tensors as numpy arrays, media as users have them. It stands on its
own: nothing of the server is imported. See docs/client.md.
"""

from serve_app.client.asynchronous import AsyncClient
from serve_app.client.calls import CallOptions, Priority
from serve_app.client.connection import ClientSettings
from serve_app.client.deadline import deadline
from serve_app.client.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    InferenceFailed,
    InvalidAnswer,
    InvalidRequest,
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
    Unauthenticated,
    Unavailable,
    Unsupported,
    UnsupportedMedia,
)
from serve_app.client.hedging import Percentile
from serve_app.client.results import (
    InferResult,
    Label,
    ModelMetadata,
    ModelSummary,
    PredictResult,
    Served,
    TensorMetadata,
    Timings,
)
from serve_app.client.retry import Retry
from serve_app.client.sync import Client

__all__ = [
    "AsyncClient",
    "CallOptions",
    "Client",
    "ClientSettings",
    "ConnectionFailed",
    "DeadlineExceeded",
    "InferResult",
    "InferenceFailed",
    "InvalidAnswer",
    "InvalidRequest",
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
    "PredictResult",
    "Priority",
    "QueueFull",
    "RateLimited",
    "Refused",
    "Retry",
    "ServeAppClientError",
    "Served",
    "ServerFault",
    "TensorMetadata",
    "Timings",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "UnsupportedMedia",
    "deadline",
]
