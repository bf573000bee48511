"""What runs inside a model's replica, around the gate of `serve_app.scheduling`."""
