"""Backends run tensors. ONNX Runtime first."""
