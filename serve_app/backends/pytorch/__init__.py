"""PyTorch's models: TorchScript, and programs of ``torch.export``."""
