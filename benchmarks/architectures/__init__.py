"""Small models of many architectures, made by the exporters that people use.

Each `export_*.py` runs in an environment of `requirements/exporters` and writes
`LIBRARY/NAME/TASK/EXPORTER/model.onnx`, or a file `failed` with the exporter's error.
"""
