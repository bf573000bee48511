"""The HTTP listener, over real sockets."""
