"""Triton with a model repository, which its repository API loads anew while it serves.

PyTriton brings Triton's server and its Python backend alone, so the model of the repository is a Python model that
holds the session. What `triton_app` serves cannot be loaded anew: it is a function of the process that starts Triton.

Triton's guide ("Model Management", explicit mode): a load of a model that is loaded takes the changed files, and the
former ones answer until then.
"""

from __future__ import annotations

from pathlib import Path

from pytriton.triton import Triton

from benchmarks.peers.apps.settings import Settings
from benchmarks.peers.apps.triton_settings import SECURITY, config, find_library

_CONFIG = """
backend: "python"
max_batch_size: {max_rows}
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
instance_group [{{ kind: KIND_CPU, count: 1 }}]
input [{{ name: "x", data_type: TYPE_FP32, dims: [ -1 ] }}]
output [{{ name: "y", data_type: TYPE_FP32, dims: [ 1 ] }}]
"""

_MODEL = """
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = {threads}
        file = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        rows = [pb.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        y = self.session.run(["y"], {{"x": np.concatenate(rows) if len(rows) > 1 else rows[0]}})[0]
        parts = np.split(y, np.cumsum([len(each) for each in rows])[:-1])
        return [pb.InferenceResponse([pb.Tensor("y", part)]) for part in parts]
"""


def main(settings: Settings) -> None:
    """Serve until the process is ended."""
    version = Path(settings.model_file).parent
    (version / "model.py").write_text(_MODEL.format(threads=settings.threads), encoding="ascii")
    described = _CONFIG.format(max_rows=settings.max_rows, delay_us=round(settings.max_wait_ms * 1000))
    (version.parent / "config.pbtxt").write_text(described, encoding="ascii")
    with Triton(config=config(settings, version.parent.parent), security_config=SECURITY) as triton:
        triton.serve()


if __name__ == "__main__":
    find_library()
    main(Settings.from_command_line())
