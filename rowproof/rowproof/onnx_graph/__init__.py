"""Which requests may share a run: what an ONNX graph proves."""
