"""Models in 8 bits whose answers do not depend on the other rows of a batch.

`rowwise` and `balance` need onnx, ONNX Runtime and numpy only: the demo's models are built with them.
"""
