"""Converts models to 8 bits whose answers do not depend on the other rows of a batch.

`rowwise` and `balance` need only onnx, ONNX Runtime and numpy: the demo's models are built with them.
"""
