"""Compares answers with those of the libraries that wrote the models' folders: ``make test-parity``.

The modules ``*_cases`` run in the environment of the exporters. Each writes folders: a model, the files that its
library saves beside it, and requests with the library's answers. `benchmarks.parity.check` serves them and compares.
"""
