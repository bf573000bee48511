"""The configuration: the ``args:`` of a Serve file, checked and converted to values for the layers below.

`serve_app.config.args.AppArgs` is the typed form. `parse_args` there makes one from plain data, and `load_file` in
`serve_app.config.file` from a whole Serve file; both raise `serve_app.errors.ConfigError` with one line per fault.
"""
