"""What serve_app is compared with: the same model on plain Ray Serve, written as its documentation advises.

An ingress deployment parses the request, calls the model's deployment once per request, and answers; the model's
deployment collects calls with ``@serve.batch``. Everything that is not named here is Serve's default: its Python proxy
in front and its transports.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.backends.onnx.kind import onnx_settings
from serve_app.composition.backend import build_settings
from serve_app.composition.model import find_files
from serve_app.config.model import ModelConfig

Array = npt.NDArray[np.float32]


class Model:
    """Runs batches in the same ONNX Runtime session that serve_app makes.

    Args:
        settings: Of the session.
        max_batch_size: Calls per batch at most.
        batch_wait_timeout_s: How long a batch waits for more calls, seconds.
    """

    def __init__(self, settings: OnnxSettings, max_batch_size: int, batch_wait_timeout_s: float) -> None:
        self._backend = OnnxBackend(settings)
        self._backend.load()
        self.infer.set_max_batch_size(max_batch_size)
        self.infer.set_batch_wait_timeout_s(batch_wait_timeout_s)

    @serve.batch  # type: ignore[untyped-decorator]  # Ray's
    async def infer(self, inputs: list[Array]) -> list[Array]:
        """Run one batch.

        Args:
            inputs: ``x`` of every call, (rows, features).

        Returns:
            ``y`` of every call.
        """
        outputs = self._backend.run({"x": np.concatenate(inputs)})["y"]
        return np.split(outputs, np.cumsum([len(each) for each in inputs])[:-1])


class Ingress:
    """Speaks the Open Inference Protocol's JSON.

    Args:
        name: The model's name.
        model: Handle of its deployment.
    """

    def __init__(self, name: str, model: DeploymentHandle[Any]) -> None:
        self._name = name
        self._model = model

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer one request."""
        tensor = (await request.json())["inputs"][0]
        x = np.asarray(tensor["data"], dtype=np.float32).reshape(tensor["shape"])
        y = await self._model.infer.remote(x)
        output = {"name": "y", "datatype": "FP32", "shape": list(y.shape), "data": y.ravel().tolist()}
        return JSONResponse({"model_name": self._name, "model_version": "1", "outputs": [output]})


def build(args: dict[str, Any]) -> serve.Application:
    """Build the application from what stands under ``args:`` of the Serve file."""
    config = ModelConfig.model_validate(args["model"])
    build = build_settings(config, find_files(config)[""].model_file, gpu_available=False)
    settings = onnx_settings(build)
    # Serve only counts CPUs; with less than one each, both also fit on a small machine.
    options = {
        "ray_actor_options": {"num_cpus": config.resources.cpus},
        "max_ongoing_requests": args["max_ongoing_requests"],
    }
    model = (
        serve.deployment(Model).options(**options).bind(settings, args["max_batch_size"], args["batch_wait_timeout_s"])
    )
    application: serve.Application = serve.deployment(Ingress).options(**options).bind(config.name, model)
    return application
