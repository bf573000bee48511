"""Old import paths that configurations name. They go with version 0.2."""
