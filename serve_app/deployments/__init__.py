"""Ray Serve deployments. Ray is imported here, in `serve_app.app` and in `serve_app.cli` only."""
