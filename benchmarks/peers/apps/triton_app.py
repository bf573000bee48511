"""Triton through PyTriton: Triton's C++ front end and dynamic batcher, the session in Python.

PyTriton brings Triton without its ONNX Runtime backend, so this is not the fastest Triton there is. Its documentation
("Decorators", "Dynamic batching") advises the decorator ``batch`` and a short queue delay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton

from benchmarks.peers.apps.settings import Session, Settings
from benchmarks.peers.apps.triton_settings import SECURITY, config, find_library


def tensor(name: str, dtype: Any, shape: tuple[int | str, ...]) -> Tensor:
    """One input or output, without its rows."""
    return Tensor(name=name, dtype=dtype, shape=tuple(size if isinstance(size, int) else -1 for size in shape))


def batcher(settings: Settings) -> DynamicBatcher:
    """First come, first served."""
    return DynamicBatcher(max_queue_delay_microseconds=round(settings.max_wait_ms * 1000))


def main(settings: Settings, batches: DynamicBatcher) -> None:
    """Serve until the process is ended."""
    session = Session(settings)

    @batch  # type: ignore[untyped-decorator]  # PyTriton's
    def infer(**inputs: Any) -> list[Any]:
        return [session.run(inputs)]

    with Triton(config=config(settings), security_config=SECURITY) as triton:
        triton.bind(
            model_name=settings.model,
            infer_func=infer,
            inputs=[tensor(name, dtype, session.shapes[name]) for name, dtype in session.inputs.items()],
            outputs=[tensor(session.output, np.float32, session.output_shape)],
            config=ModelConfig(max_batch_size=settings.max_rows, batcher=batches),
            strict=False,  # without it PyTriton looks at every output's type and shape
        )
        triton.serve()


if __name__ == "__main__":
    find_library()
    told = Settings.from_command_line()
    main(told, batcher(told))
