"""Models of PyTorch: TorchScript, and programs of ``torch.export``."""
