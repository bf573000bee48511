"""Checks the settings of a model that answers in parts."""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.backends.description import Description
from serve_app.config.model import ModelConfig
from serve_app.payloads import TENSORS


def stream_problems(model: ModelConfig, builds: Mapping[str, Description]) -> tuple[str, ...]:
    """Why a model cannot answer in parts as configured, one line each; none if it does not.

    Args:
        builds: Contents of its files, by variant.
    """
    streaming = [variant for variant, build in builds.items() if build.streams]
    if not streaming:
        return ()
    problems = []
    if len(streaming) < len(builds):
        problems.append("variants: either all of its builds answer in parts, or none does")
    if model.task != TENSORS:
        problems.append(f"task: only a model of task {TENSORS} can; return the outputs of {model.task} at once")
    if model.caches:
        problems.append("cache: parts are not kept; leave this out")
    if model.fallbacks:
        problems.append("fallbacks: none can take over when a part has come; leave this out")
    if model.shadow is not None:
        problems.append("shadow: parts are not compared; leave this out")
    problems += [
        f"batching.{key}: each request has a run of its own; leave this out"
        for key in ("max_rows", "axis", "unverified")
        if key in model.batching.model_fields_set and (key != "max_rows" or model.batching.configured_rows > 1)
    ]
    return tuple(f"model {model.name!r} answers in parts, since its predict yields: {problem}" for problem in problems)
