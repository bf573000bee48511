"""A server whose processes are killed."""
