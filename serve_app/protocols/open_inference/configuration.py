"""A model's configuration as Triton's clients read it: its ``ModelConfig`` message in JSON."""

from __future__ import annotations

from typing import Any

from serve_app.payloads import TensorSpec
from serve_app.protocols.service import ModelInfo
from serve_app.scheduling.entry import Priority

PLATFORM = "onnxruntime_onnx"


def model_config(info: ModelInfo) -> dict[str, Any]:
    """Make the configuration of a model.

    Dimension 0, the rows, is left out of ``dims``, as Triton does where ``max_batch_size`` is not 0. ``instance_group``
    counts the replicas that there are at least; ``parameters`` holds what the message has no field for.
    """
    serving = info.serving
    return {
        "name": info.name,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "runtime": "",
        "version_policy": {"specific": {"versions": [int(version) for version in info.versions]}},
        "max_batch_size": info.max_rows,
        "input": [
            {
                **_tensor(spec),
                "format": f"FORMAT_{info.formats.get(spec.name) or info.layout or 'NONE'}",
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
            }
            for spec in info.signature.inputs
        ],
        "output": [
            {**_tensor(spec), "label_filename": info.label_files.get(spec.name, ""), "is_shape_tensor": False}
            for spec in info.signature.outputs
        ],
        "dynamic_batching": _batching(info),
        "instance_group": [
            {
                "name": info.name,
                "kind": {"cpu": "KIND_CPU", "cuda": "KIND_GPU"}.get(serving.device, "KIND_AUTO"),
                "count": serving.min_replicas,
                "gpus": [],
            }
        ],
        "default_model_filename": info.file,
        "metric_tags": {},
        "parameters": {
            name: {"string_value": value}
            for name, value in {
                "task": info.task,
                "batching_policy": serving.policy,
                "min_replicas": str(serving.min_replicas),
                "max_replicas": str(serving.max_replicas),
                "max_request_rows": str(info.max_request_rows),
                "variants": ",".join(info.variants),
            }.items()
        },
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{datatype}", "dims": list(spec.shape[1:])}


def _batching(info: ModelInfo) -> dict[str, Any]:
    """Three levels, 1 the most urgent. A request may name a shorter or longer deadline than that of its class."""
    return {
        "preferred_batch_size": list(info.serving.row_sizes),
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": len(Priority),
        "default_priority_level": int(Priority.NORMAL),
        "priority_queue_policy": {
            str(int(priority)): {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": round(info.default_timeout_s[priority] * 1e6),
                "allow_timeout_override": True,
                "max_queue_size": info.serving.queue_entries.get(priority, 0),
            }
            for priority in Priority
            if priority in info.default_timeout_s
        },
    }
