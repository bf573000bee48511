"""Processors turn media into tensors and tensors into answers: image, text, audio.

Custom classes derive from `Processor` and can import everything they need from here.
"""

from serve_app.config.processor import PROCESSOR_OPTIONS
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest, PayloadTooLarge, UnsupportedMedia
from serve_app.payloads import Embeddings, Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors.buckets import bucket_for, bucket_of, widen
from serve_app.processors.media_type import expect_media
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.parameters import parse_parameters
from serve_app.processors.processor import Cost, Processor
from serve_app.processors.registry import create_processor
from serve_app.processors.tokenization import expect_texts

__all__ = [
    "PROCESSOR_OPTIONS",
    "ConfigError",
    "Cost",
    "Embeddings",
    "InferenceFailed",
    "InvalidRequest",
    "Media",
    "ModelFolder",
    "ModelSignature",
    "PayloadTooLarge",
    "Processor",
    "TensorSpec",
    "Tensors",
    "Texts",
    "UnsupportedMedia",
    "bucket_for",
    "bucket_of",
    "create_processor",
    "expect_media",
    "expect_texts",
    "parse_parameters",
    "widen",
]
