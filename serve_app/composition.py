"""What a configuration makes of the parts: its models as they are read and described, and the settings of a router."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serve_app.api.grpc_listener import GrpcLimits
from serve_app.api.http_app import HttpSettings
from serve_app.api.open_inference.sample import decode_sample
from serve_app.backends.description import Description
from serve_app.config import AppArgs, ModelConfig, ModelLocation
from serve_app.config.profile import read_profile
from serve_app.config.tensors import input_formats, output_labels
from serve_app.domain.service import ModelInfo, ModelServing
from serve_app.errors import ConfigError, ServeAppError
from serve_app.http.http1 import Limits
from serve_app.http.listener import within_open_files
from serve_app.http.tls import TlsFiles
from serve_app.payloads import Execution
from serve_app.processors.image import ImageProcessor
from serve_app.router.cache.response_cache import ModelCacheSettings
from serve_app.router.settings import GrpcPort, GrpcSettings, HttpPort, LogFile, RoutedModel, RouterSettings

_log = logging.getLogger(__name__)


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


def router_settings(
    config: AppArgs,
    infos: Mapping[str, ModelInfo],
    *,
    priors: Mapping[str, Sequence[Execution]],
    identities: Mapping[str, Mapping[str, str]],
    log_file: Path | None = None,
) -> RouterSettings:
    """What a router process needs to know.

    To be called in that process, once for a router: it reads keys and certificates, and lets the process open as many
    files as its ports may need.

    Args:
        config: The configuration.
        infos: Every model's description, by the model's name.
        priors: What batches of some models cost according to their profiles, by name.
        identities: By model and variant, of the models whose answers are kept.
        log_file: Where the log of requests goes; ``None``: there is none.

    Raises:
        ConfigError: API keys, certificates or the password of Redis are not where they should be.
    """
    router = config.router
    return RouterSettings(
        models=_routed(config, infos, priors, identities),
        classes=config.class_settings(),
        limits=config.process_limits(),
        groups=config.groups(),
        bundle_timeout_s=router.bundle_timeout_s,
        replica_silence_s=router.replica_silence_s,
        replica_kill_s=router.replica_kill_s,
        shared_memory=int(router.shared_memory),
        caches=config.cache_settings(),
        http=HttpSettings(
            max_body=router.max_body,
            max_held_bytes=max(router.max_body, router.max_bytes // 2),
            offload_above=router.offload_above,
            decode_threads=router.decode_threads,
            in_place_bytes=router.shared_memory // 2,  # the other half is for what has arrived
            open_administration=router.open_administration,
        ),
        grpc=GrpcSettings(
            open_administration=router.open_administration,
            typed_answers=router.grpc_outputs == "as_inputs",
            streams=router.grpc_streams,
            stream_idle_s=router.grpc_stream_idle_s,
        ),
        http_port=_http_port(config),
        grpc_port=_grpc_port(config),
        keys=router.watched_keys(config.classes.levels()),
        log=config.logging.settings(),
        log_file=None
        if log_file is None
        else LogFile(log_file, int(config.logging.max_bytes), config.logging.files - 1),
    )


def _http_port(config: AppArgs) -> HttpPort | None:
    router = config.router
    if router.direct_port is None:
        return None
    limits = Limits(
        connections=within_open_files(
            router.connections, 0 if router.direct_grpc_port is None else router.grpc_connections
        ),
        connections_per_client=router.connections_per_client,
        requests=config.ongoing_requests,
    )
    return HttpPort(router.direct_host, router.direct_port, limits, _tls(config), "args.router.direct_port")


def _grpc_port(config: AppArgs) -> GrpcPort | None:
    router = config.router
    if router.direct_grpc_port is None:
        return None
    limits = GrpcLimits(
        max_message=router.max_body,
        calls=config.ongoing_requests,
        connections=within_open_files(router.grpc_connections, 0 if router.direct_port is None else router.connections),
        arriving=max(16, 2 * router.max_bytes // router.max_body),
        keepalive_s=router.grpc_keepalive_s,
        client_ping_s=router.grpc_client_ping_s,
    )
    return GrpcPort(router.direct_host, router.direct_grpc_port, limits, _tls(config), "args.router.direct_grpc_port")


def _tls(config: AppArgs) -> TlsFiles | None:
    if config.router.tls is None:
        return None
    if problems := config.tls_problems():
        raise ConfigError(problems)
    return config.router.tls.files()


def _routed(
    config: AppArgs,
    infos: Mapping[str, ModelInfo],
    priors: Mapping[str, Sequence[Execution]],
    identities: Mapping[str, Mapping[str, str]],
) -> list[RoutedModel]:
    """Every model as a router serves it. Its processor only prices requests there."""
    scheduling = config.model_scheduling()
    group_of = {member: group.name for group in config.groups() for member in group.models}
    return [
        RoutedModel(
            info=infos[model.name],
            scheduling=scheduling[model.name],
            processor=model.make_processor(infos[model.name].signature, model.locations()[""]),
            group=group_of.get(model.name),
            prior=priors.get(model.name, ()),
            on_demand=model.autoscaling.min_replicas == 0,
            cache=_cache(model, identities.get(model.name, {})),
        )
        for model in config.models
    ]


def _cache(model: ModelConfig, identities: Mapping[str, str]) -> ModelCacheSettings | None:
    if model.cache is None or not model.caches:
        return None
    return ModelCacheSettings(model.cache.ttl_s, int(model.cache.max_bytes), identities)


def read_priors(models: Sequence[ModelConfig]) -> Mapping[str, list[Execution]]:
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
