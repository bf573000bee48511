"""Compares what the server makes of folders with what the libraries that wrote them make."""
