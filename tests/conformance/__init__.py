"""Does serving change an answer? Whatever is served is compared with ONNX Runtime alone, on the very same request."""
