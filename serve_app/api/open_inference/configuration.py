"""A model's configuration for Triton's clients: a ``ModelConfig`` message in JSON."""

from __future__ import annotations

from typing import Any

from serve_app.domain.priority import Priority
from serve_app.domain.service import ModelInfo
from serve_app.payloads import TensorSpec


def model_config(info: ModelInfo) -> dict[str, Any]:
    """Make the configuration of a model.

    ``dims`` omits the rows, as Triton does if ``max_batch_size`` is not 0. It is 0 for tensors without rows, or with
    rows elsewhere than in front. ``instance_group`` holds the minimum number of replicas; ``parameters`` holds whatever
    has no field in the message.
    """
    serving, batched = info.serving, info.rows and not any(spec.axis for spec in info.signature.inputs)
    signature = info.signature
    return {
        "name": info.name,
        "platform": info.platform,
        "backend": info.backend,
        "runtime": "",
        "version_policy": {"specific": {"versions": [int(version) for version in info.versions]}},
        "max_batch_size": info.max_rows if batched else 0,
        "input": [
            {
                **_tensor(spec, batched=batched and not optional),
                "format": f"FORMAT_{info.formats.get(spec.name) or info.layout or 'NONE'}",
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": optional,
            }
            for optional, specs in ((False, signature.inputs), (True, signature.optional))
            for spec in specs
        ],
        "output": [
            {
                **_tensor(spec, batched=batched),
                "label_filename": info.label_files.get(spec.name, ""),
                "is_shape_tensor": False,
            }
            for spec in signature.outputs
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
                **{name: str(value) for name, value in joinable_parameters(info).items()},
            }.items()
        },
        "model_transaction_policy": {"decoupled": info.streams},
        "response_cache": {"enable": False},
    }


def joinable_parameters(info: ModelInfo) -> dict[str, Any]:
    """Whether requests share runs and are padded, for clients."""
    verdict = info.joinable[""]
    return {
        "joinable": verdict.verdict,
        "joinable_reason": verdict.reason,
        "joinable_deviation": verdict.deviation,
        "joinable_padding": verdict.padding,
    }


def _tensor(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
    dims = list(spec.shape[1:] if batched else spec.public_shape)
    return {"name": spec.name, "data_type": f"TYPE_{datatype}", "dims": dims}


def _batching(info: ModelInfo) -> dict[str, Any]:
    """Priority levels from 1, the most urgent, to the last named one, which like all beyond it is the lowest class.

    A request may name a shorter or longer deadline than its class.
    """
    levels = info.levels
    policies = {
        priority: {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": round(seconds * 1e6),
            "allow_timeout_override": True,
            "max_queue_size": info.serving.queue_entries.get(priority, 0),
        }
        for priority, seconds in info.default_timeout_s.items()
    }
    return {
        "preferred_batch_size": list(info.serving.row_sizes),
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": levels.highest,
        "default_priority_level": levels.default,
        "default_queue_policy": policies.get(Priority.LOW, {}),  # of the levels that are not listed
        "priority_queue_policy": {
            str(number): policies[priority] for number, priority in sorted(levels.named.items()) if priority in policies
        },
    }
