"""What a configuration makes of the parts: its models as they are read and described, and the settings of a router."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from serve_app.api.grpc_listener import GrpcLimits
from serve_app.api.http_app import HttpSettings
from serve_app.composition.access import tls_problems, watched_keys
from serve_app.composition.description import model_info
from serve_app.composition.hosting import members_of
from serve_app.composition.jobs import job_settings
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import file_bytes, find_files, make_processor
from serve_app.composition.pipelines import pipeline_infos
from serve_app.composition.revision import Revision
from serve_app.config import AppArgs, ModelConfig
from serve_app.domain.agreed import Agreed
from serve_app.domain.service import ModelInfo
from serve_app.domain.settings import TlsFiles
from serve_app.errors import ConfigError
from serve_app.http.http1 import Limits
from serve_app.http.listener import within_open_files
from serve_app.payloads import Execution
from serve_app.router.cache.response_cache import ModelCacheSettings
from serve_app.router.settings import (
    GrpcPort,
    GrpcSettings,
    HttpPort,
    LogFile,
    RoutedModel,
    RoutedPool,
    RouterSettings,
    StreamSettings,
)

_log = logging.getLogger(__name__)


def router_settings(
    config: AppArgs,
    infos: Mapping[str, ModelInfo],
    *,
    priors: Mapping[str, Sequence[Execution]],
    identities: Mapping[str, Mapping[str, str]],
    log_file: Path | None = None,
    deployed: Mapping[str, Agreed] = MappingProxyType({}),
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
        deployed: By model, the revision that it was deployed with, of those whose bundles name one.

    Raises:
        ConfigError: API keys, certificates or the password of Redis are not where they should be, or a pipeline does
            not fit its models.
    """
    router = config.router
    return RouterSettings(
        models=[
            replace(model, base=deployed[model.name].revision) if model.name in deployed else model
            for model in _routed(config, infos, priors, identities)
        ],
        pipelines=pipeline_infos(config, infos),
        classes=config.class_settings(),
        limits=config.process_limits(),
        groups=config.groups(),
        pools=[
            RoutedPool(pool.scheduling(names), pool.load_timeout_s)
            for pool, names in zip(config.pools, members_of(config).values(), strict=True)
        ],
        named_members=router.limits.named_members,
        bundle_timeout_s=router.faults.bundle_timeout_s,
        replica_silence_s=router.faults.replica_silence_s,
        replica_kill_s=router.faults.replica_kill_s,
        shared_memory=int(router.transport.shared_memory),
        streams=StreamSettings(
            parts=router.limits.stream_parts,
            nbytes=int(router.limits.stream_bytes),
            all_bytes=int(router.limits.all_streams_bytes),
            reader_s=router.limits.slow_reader_s,
        ),
        caches=config.cache_settings(),
        http=HttpSettings(
            max_body=router.limits.max_body,
            max_held_bytes=max(router.limits.max_body, router.limits.max_bytes // 2),
            offload_above=router.transport.offload_above,
            decode_threads=router.transport.decode_threads,
            in_place_bytes=router.transport.shared_memory // 2,  # the other half is for what has arrived
            open_administration=router.access.open_administration,
        ),
        grpc=GrpcSettings(
            open_administration=router.access.open_administration,
            typed_answers=router.grpc.outputs == "as_inputs",
            streams=router.grpc.streams,
            stream_idle_s=router.grpc.stream_idle_s,
        ),
        http_port=_http_port(config),
        grpc_port=_grpc_port(config),
        tls=_tls(config),
        keys=watched_keys(router, config.classes.levels()),
        log=config.logging.settings(),
        log_file=None
        if log_file is None
        else LogFile(log_file, int(config.logging.max_bytes), config.logging.files - 1),
        jobs=job_settings(router.jobs),
    )


def _http_port(config: AppArgs) -> HttpPort | None:
    router = config.router
    if router.http.port is None:
        return None
    limits = Limits(
        connections=within_open_files(
            router.http.connections, 0 if router.grpc.port is None else router.grpc.connections
        ),
        connections_per_client=router.http.connections_per_client,
        requests=config.ongoing_requests,
    )
    return HttpPort(router.host, router.http.port, limits, "args.router.http.port")


def _grpc_port(config: AppArgs) -> GrpcPort | None:
    router = config.router
    if router.grpc.port is None:
        return None
    limits = GrpcLimits(
        max_message=router.limits.max_body,
        calls=config.ongoing_requests,
        connections=within_open_files(
            router.grpc.connections, 0 if router.http.port is None else router.http.connections
        ),
        arriving=max(16, 2 * router.limits.max_bytes // router.limits.max_body),
        keepalive_s=router.grpc.keepalive_s,
        client_ping_s=router.grpc.client_ping_s,
    )
    return GrpcPort(router.host, router.grpc.port, limits, "args.router.grpc.port")


def _tls(config: AppArgs) -> TlsFiles | None:
    if config.router.tls is None:
        return None
    if problems := tls_problems(config.router):
        raise ConfigError(problems)
    return config.router.tls.files()


def _routed(
    config: AppArgs,
    infos: Mapping[str, ModelInfo],
    priors: Mapping[str, Sequence[Execution]],
    identities: Mapping[str, Mapping[str, str]],
) -> list[RoutedModel]:
    """Every model as a router serves it."""
    return [
        _routed_model(
            config,
            model,
            infos[model.name],
            find_files(model)[""],
            priors.get(model.name, ()),
            identities.get(model.name, {}),
        )
        for model in config.models
    ]


def describe_revision(config: AppArgs, revision: Revision) -> bytes:
    """What all routers need to know of a state of a model's files, for `route_revision`.

    Raises:
        ConfigError: The configuration does not fit it.
    """
    info = model_info(revision.model, config, revision.builds, revision.locations)._replace(revision=revision.name)
    make_processor(revision.model, info.signature, revision.locations[""])
    return pickle.dumps((info, dict(revision.identities)))


def route_revision(config: AppArgs, model: ModelConfig, agreed: Agreed) -> RoutedModel:
    """A model as a router serves it from a state of its files.

    Args:
        config: The configuration.
        model: The model.
        agreed: That state.

    Raises:
        ConfigError: What is beside the model's files, by which requests are priced, cannot be read.
    """
    info, identities = pickle.loads(agreed.described)  # noqa: S301 - routers of this application have written it
    if agreed.version is not None:
        model = model.model_copy(update={"version": agreed.version})
    return _routed_model(config, model, info, find_files(model)[""], agreed.executions, identities)


def _routed_model(
    config: AppArgs,
    model: ModelConfig,
    info: ModelInfo,
    location: ModelLocation,
    prior: Sequence[Execution],
    identities: Mapping[str, str],
) -> RoutedModel:
    """A model as a router serves it. Its processor only prices requests there."""
    scheduling = config.scheduling_of(model)
    if model.pool is not None:  # until a host has measured what it holds
        scheduling = replace(scheduling, resident_bytes=max(1, file_bytes(find_files(model))))
    return RoutedModel(
        info=info,
        scheduling=scheduling,
        processor=make_processor(model, info.signature, location),
        group=next((group.name for group in config.device_groups if model.name in group.models), None),
        pool=model.pool,
        prior=prior,
        on_demand=model.pool is None and model.autoscaling.min_replicas == 0,
        cache=_cache(model, identities, info.revision),
        traffic=model.version_traffic() if info.key else None,
    )


def _cache(model: ModelConfig, identities: Mapping[str, str], revision: str) -> ModelCacheSettings | None:
    if model.cache is None or not model.caches:
        return None
    return ModelCacheSettings(model.cache.ttl_s, int(model.cache.max_bytes), identities, revision)
