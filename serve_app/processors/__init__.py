"""Processors turn media into tensors and tensors into answers: image, text, audio.

`create_processor` makes one by its Hugging Face task name; `PROCESSOR_OPTIONS` holds the options of every task.
"""

from serve_app.config.processor import PROCESSOR_OPTIONS
from serve_app.processors.registry import create_processor

__all__ = ["PROCESSOR_OPTIONS", "create_processor"]
