"""The inside of a model's replica, around the gate of `serve_app.scheduling`."""
