"""What every route and call that runs models keeps to, driven by the table of routes."""
