"""Models that are a class in a Python file, run in the server's process or in a process of their own."""
