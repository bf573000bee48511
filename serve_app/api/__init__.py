"""The APIs: each parses requests into what `serve_app.domain.service` takes, and renders its answers."""
