"""serve_app: a multi-model inference server on Ray Serve that schedules by priority and deadline."""

__version__ = "0.1.0"
