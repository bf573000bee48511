"""The composition root: what ``serve run`` imports. Turns a configuration into a Ray Serve application."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from serve_app.config import ROUTER, AppArgs, ModelConfig, ModelLocation, parse_args
from serve_app.config.identity import identities
from serve_app.config.profile import read_profile
from serve_app.config.tensors import input_formats, output_labels
from serve_app.deployments.model import ModelDeployment
from serve_app.deployments.router import RouterDeployment
from serve_app.errors import ConfigError, ServeAppError
from serve_app.inference.description import Description
from serve_app.payloads import Execution
from serve_app.processors.image import ImageProcessor
from serve_app.protocols.open_inference.sample import decode_sample
from serve_app.protocols.service import ModelInfo, ModelServing

_log = logging.getLogger(__name__)

_SURGE = 100
"""Percent: a redeploy starts new replicas first and stops the old ones when those are ready."""


def build(args: dict[str, Any]) -> serve.Application:
    """Build the application from what stands under ``args:`` of a Serve file.

    Everything that can be found wrong without starting a replica is found here: the configuration itself, missing
    files, models that cannot be read, processors that do not fit their model.

    Raises:
        ConfigError: With one readable line per fault.
    """
    config = parse_args(args)
    described = read_models(config)
    infos = {model.name: model_info(model, config, described[model.name]) for model in config.models}
    # Replicas that start later must not pick up a version that appeared in the meantime.
    pinned = [
        model.model_copy(update={"version": int(info.version)}) if info.numbered else model
        for model in config.models
        for info in (infos[model.name],)
    ]
    known = {model.name: identities(model, model.locations()) for model in pinned if model.caches}
    min_share = {priority: limits.min_share for priority, limits in config.class_settings().items()}
    grouped = {member for group in config.groups() for member in group.models}
    models = {
        model.name: _model_deployment(model, config).bind(
            model,
            builds=described[model.name],
            identities=known.get(model.name, {}),
            min_share=min_share,
            planned=model.name in grouped,
        )
        for model in pinned
    }
    router = serve.deployment(serve.ingress()(RouterDeployment)).options(
        name=ROUTER,
        autoscaling_config={
            "min_replicas": config.router.replicas,
            "max_replicas": config.router.replicas,
            "metrics_interval_s": 1.0,
            "look_back_period_s": 5.0,
        },
        max_ongoing_requests=config.ongoing_requests,
        ray_actor_options={"num_cpus": config.router.cpus},
        health_check_period_s=5.0,
        # Serve first waits for what came by its own ports, then the router closes the others.
        graceful_shutdown_timeout_s=2 * config.router.drain_timeout_s,
        max_surge_percent=_SURGE,
    )
    application: serve.Application = router.bind(config, infos, models, priors=_priors(pinned), identities=known)
    return application


def describe_models(config: AppArgs) -> dict[str, ModelInfo]:
    """Read every model's files and describe it, as clients will see it before any replica runs.

    Raises:
        ConfigError: One line per model that cannot be used.
    """
    described = read_models(config)
    return {model.name: model_info(model, config, described[model.name]) for model in config.models}


def read_models(config: AppArgs) -> dict[str, dict[str, Description]]:
    """Read the files of every model and check all that they have to fit.

    Returns:
        By model and variant.

    Raises:
        ConfigError: One line per model that cannot be used.
    """
    described: dict[str, dict[str, Description]] = {}
    problems: list[str] = []
    for model in config.models:
        try:
            described[model.name] = _read(model)
        except ConfigError as error:
            problems.extend(error.problems)
        except ServeAppError as error:
            problems.append(f"model {model.name!r}: {error}")
    if problems:
        raise ConfigError(tuple(problems))
    return described


def _priors(models: list[ModelConfig]) -> Mapping[str, list[Execution]]:
    """What the profiles say of the models that have one. They were checked when the models were described."""
    priors: dict[str, list[Execution]] = {}
    for model in models:
        if model.profile is not None:
            served = {"", *(variant.name for variant in model.variants)}
            points = read_profile(model.profile).points()
            priors[model.name] = [point for point in points if point.variant in served]
    return priors


def _read(model: ModelConfig) -> dict[str, Description]:
    locations = model.locations()
    builds = model.describe(locations)
    exact = builds[""]
    model.make_processor(exact.signature, locations[""])
    model.make_samples(exact.signature, decode_sample, rows=exact.joinable.rows)  # does what is configured fit?
    _said_of_tensors(model, exact, locations[""], tell=False)
    profile = model.read_profile(locations)
    for note in () if profile is None else model.profile_notes(profile):
        _log.warning("%s", note)
    return builds


def model_info(model: ModelConfig, config: AppArgs, builds: Mapping[str, Description]) -> ModelInfo:
    """Describe a model whose files have been read, as clients will see it."""
    locations = model.locations()
    exact, signature = locations[""], builds[""].signature
    processor = model.make_processor(signature, exact)
    return ModelInfo(
        name=model.name,
        version=exact.version,
        versions=(exact.version,),
        task=model.task,
        signature=signature,
        max_rows=model.batching.max_rows,
        max_request_rows=config.router.max_request_rows,
        default_timeout_s={priority: limits.timeout_s for priority, limits in config.class_settings().items()},
        labels=() if processor is None else processor.labels,
        variants=tuple(variant for variant in locations if variant),
        serving=_serving(model, config),
        layout=processor.settings.layout if isinstance(processor, ImageProcessor) else "",
        joinable={variant: build.joinable for variant, build in builds.items()},
        fixed_rows=builds[""].fixed_rows is not None,
        levels=config.classes.levels(),
        file=exact.file,
        numbered=exact.numbered,
        **_said_of_tensors(model, builds[""], exact),
    )


def _said_of_tensors(
    model: ModelConfig, build: Description, location: ModelLocation, *, tell: bool = True
) -> dict[str, Any]:
    """What the configuration, or a file beside the model, says of the tensors of a model without a processor.

    Raises:
        ConfigError: It does not fit the tensors.
    """
    if model.processor is not None:
        return {}
    signature = build.signature
    if not build.joinable.rows:  # an output as a whole has the classes that a row has elsewhere
        signature = signature._replace(
            outputs=tuple(spec._replace(shape=(-1, *spec.shape)) for spec in signature.outputs)
        )
    problems: list[str] = []
    told: dict[str, Any] = {}
    try:
        found = output_labels(model.labels, signature, location.sidecars())
        told |= {"output_labels": found.labels, "label_files": found.files}
        if found.note and tell:
            _log.log(logging.INFO if found.labels else logging.WARNING, "model %r: %s", model.name, found.note)
    except ConfigError as error:
        problems += error.problems
    try:
        told["formats"] = input_formats(model.format, build.signature)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(tuple(f"model {model.name!r}: {problem}" for problem in problems))
    return told


def _serving(model: ModelConfig, config: AppArgs) -> ModelServing:
    sizes = model.resources.row_sizes
    return ModelServing(
        policy=model.batching.policy,
        row_sizes=() if isinstance(sizes, str) else sizes,
        device=model.resources.device,
        min_replicas=model.autoscaling.min_replicas,
        max_replicas=model.autoscaling.max_replicas,
        queue_entries={priority: limits.queue_entries for priority, limits in config.class_settings().items()},
    )


def _model_deployment(model: ModelConfig, config: AppArgs) -> Any:
    scaling = model.autoscaling
    actor_options: dict[str, Any] = {"num_cpus": model.resources.cpus}
    if model.resources.gpus and (model.resources.device == "cuda" or ray.cluster_resources().get("GPU", 0) > 0):
        actor_options["num_gpus"] = model.resources.gpus
    return serve.deployment(ModelDeployment).options(
        name=model.deployment,
        ray_actor_options=actor_options,
        # The scheduler's slots keep every router to its window; Serve must never be the one to say no.
        max_ongoing_requests=3 * model.batching.window * model.batching.max_rows * config.router.replicas,
        autoscaling_config={
            "min_replicas": scaling.min_replicas,
            "initial_replicas": scaling.start_replicas,
            "max_replicas": scaling.max_replicas,
            "target_ongoing_requests": model.target_rows,
            "metrics_interval_s": scaling.metrics_interval_s,
            "look_back_period_s": scaling.look_back_period_s,
            "upscale_delay_s": scaling.upscale_delay_s,
            "downscale_delay_s": scaling.downscale_delay_s,
            "downscale_to_zero_delay_s": scaling.downscale_to_zero_delay_s,
        },
        request_router_config=RequestRouterConfig(request_router_class="serve_app.deployments.slot_router:SlotRouter"),
        health_check_period_s=model.health.check_period_s,
        health_check_timeout_s=model.health.check_timeout_s,
        graceful_shutdown_timeout_s=model.health.drain_timeout_s,
        max_surge_percent=_SURGE,
    )
