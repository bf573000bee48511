"""Models in FP16: half the memory, and on a GPU with units for it a multiple of the speed. On a CPU they are slower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from serve_app.backends.onnx.failure import describe_failure
from serve_app.backends.onnx.signature import NO_ROWS, read_signature
from serve_app.errors import ConfigError

_MOST_IN_ONE_FILE = 1 << 30  # bytes; a protobuf message ends at 2 GiB, and the converter needs one


def convert_to_fp16(source: Path, target: Path, *, model: str) -> None:
    """Write a model with weights and computation in FP16. Its inputs and outputs stay as they are.

    What FP16 cannot hold is cut to its largest number, 65,504, and what has no FP16 kernel stays in FP32.

    Args:
        source: An ONNX file in FP32.
        target: The file to write, in a folder that is there.
        model: The model's name, for the messages.

    Raises:
        ConfigError: The package `onnx` is not installed; or the model cannot be read, converted or run then, e.g.
            because it is quantised.
    """
    try:
        import onnx  # noqa: PLC0415 - not part of the server's environment
        from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError((f"converting a model needs the package {error.name!r}: pip install onnx",)) from error
    before = read_signature(source, model=model, layout=NO_ROWS)
    if source.stat().st_size > _MOST_IN_ONE_FILE:
        raise ConfigError((f"model {model!r}: {source} is larger than 1 GiB, which is more than is converted here",))
    try:
        converted: Any = convert_float_to_float16(onnx.load(source), keep_io_types=True)
        onnx.save(converted, target)
        after = read_signature(target, model=model, layout=NO_ROWS)
    except ConfigError as error:
        target.unlink(missing_ok=True)
        reason = error.problems[0].rpartition("cannot be loaded: ")[2]
        raise ConfigError((f"model {model!r}: does not work in FP16: {reason}",)) from error
    except Exception as error:  # the converter is foreign code
        target.unlink(missing_ok=True)
        raise ConfigError((f"model {model!r}: cannot be converted to FP16: {describe_failure(error)}",)) from error
    if [(spec.name, spec.datatype) for spec in (*before.inputs, *before.outputs)] != [
        (spec.name, spec.datatype) for spec in (*after.inputs, *after.outputs)
    ]:
        target.unlink(missing_ok=True)
        raise ConfigError((f"model {model!r}: has other inputs and outputs in FP16",))
