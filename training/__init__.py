"""Builds the demo and benchmark models: training, conversion, ONNX graphs. Never imported by the server."""
