"""Processors turn media into tensors and tensors into answers: image, text, audio."""
