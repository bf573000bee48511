"""Measurements of the server against others and against bare ONNX Runtime. Each is a module that can be run."""
