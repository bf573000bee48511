"""The Open Inference Protocol (V2): REST."""
