"""The gRPC server below the Open Inference Protocol."""
