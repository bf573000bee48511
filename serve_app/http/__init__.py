"""The HTTP server below the APIs."""
