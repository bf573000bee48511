"""BentoML: a service with an API for each model, access log, metrics and traces off.

Run as a program, it becomes ``bentoml serve`` of itself. Without batches, APIs are coroutines that run all in the
event loop, which spares a thread; with them, BentoML batches and learns how long to wait. Bodies come and go as they
are: other forms would be read and written by pydantic.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import bentoml
from _bentoml_sdk.io_models import IORootModel
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.tasks.apps.work import MOST_REQUESTS, PATH, Settings

_SETTINGS = "BENCHMARK_SETTINGS"
_MAX_LATENCY_MS = 60_000

# What is decorated has to be made while this module is imported, by BentoML's own processes.
told = Settings.from_text(os.environ.get(_SETTINGS) or sys.argv[1])


class Bodies(IORootModel[list[bytes]]):  # type: ignore[misc]  # not in this environment
    """Bodies of requests or answers: one each, and several where they are batched."""

    __root_input__ = True

    @classmethod
    async def from_http_request(cls, request: Request, serde: Any) -> Bodies:  # noqa: ARG003 - BentoML's
        """The body as it is."""
        return cls([await request.body()])

    @classmethod
    async def to_http_response(cls, obj: list[bytes], serde: Any) -> Response:  # noqa: ARG003 - BentoML's
        """The answer as it is."""
        return Response(obj[0], media_type="application/json")


def _api(model: str) -> Any:
    """The API of a model."""

    async def infer(self: Models, bodies: list[bytes]) -> list[bytes]:
        work = self.work[model]
        outputs = work.run_all([work.prepare(body) for body in bodies])
        return [work.answer(each) for each in outputs]

    def infer_batch(self: Models, bodies: list[bytes]) -> list[bytes]:
        work = self.work[model]
        outputs = work.run_all([work.prepare(body) for body in bodies])
        return [work.answer(each) for each in outputs]

    options: dict[str, Any] = {"route": PATH.format(model), "input_spec": Bodies, "output_spec": Bodies}
    if told.batches:
        options.update(batchable=True, batch_dim=0, max_batch_size=MOST_REQUESTS, max_latency_ms=_MAX_LATENCY_MS)
    chosen: Any = infer_batch if told.batches else infer
    chosen.__name__ = model.replace("-", "_")  # as the attribute is called: BentoML looks for it
    return bentoml.api(**options)(chosen)


class Models:
    """Every model."""

    def __init__(self) -> None:
        self.work = told.work()

    minilm = _api("minilm")
    digits = _api("digits")
    spoken_digits = _api("spoken-digits")
    resnet50 = _api("resnet50")


Service = bentoml.service(
    Models,
    workers=told.workers,
    traffic={"timeout": 60},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)


def main() -> None:
    """Become ``bentoml serve``."""
    command = [
        *(sys.executable, "-m", "bentoml", "serve", "benchmarks.tasks.apps.bentoml_app:Service"),
        *("--host", "127.0.0.1", "--port", str(told.ports[0])),
    ]
    os.execve(sys.executable, command, {**os.environ, _SETTINGS: sys.argv[1], "BENTOML_DO_NOT_TRACK": "True"})


if __name__ == "__main__":
    main()
