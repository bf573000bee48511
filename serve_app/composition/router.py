"""Makes the settings of a router from a configuration and its described models."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from serve_app import wings
from serve_app.api.grpc_listener import GrpcLimits
from serve_app.api.http_app import HttpSettings
from serve_app.composition.access import tls_problems, watched_keys
from serve_app.composition.description import model_info
from serve_app.composition.model import file_bytes, find_files, make_processor
from serve_app.composition.revision import Revision, open_revision
from serve_app.composition.versions import configured_traffic
from serve_app.composition.wing_parts import router_devices, router_parts
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig
from serve_app.domain.agreed import Agreed, not_loaded
from serve_app.domain.service import ModelInfo
from serve_app.domain.settings import TlsFiles
from serve_app.errors import ConfigError
from serve_app.http.http1 import Limits
from serve_app.http.listener import within_open_files
from serve_app.payloads import Execution
from serve_app.processors.processor import Processor
from serve_app.router.answer_cache import ModelCacheSettings
from serve_app.router.settings import (
    GrpcPort,
    GrpcSettings,
    HttpPort,
    LogFile,
    RoutedModel,
    RouterSettings,
    StreamSettings,
)

_log = logging.getLogger(__name__)

_GRPC_AGE_S = 60.0
"""Lifetime of connections with several routers, seconds: another connection may reach another one."""


def router_settings(
    config: AppArgs,
    infos: Mapping[str, ModelInfo],
    *,
    priors: Mapping[str, Sequence[Execution]],
    identities: Mapping[str, Mapping[str, str]],
    log_file: Path | None = None,
    deployed: Mapping[str, Agreed] = MappingProxyType({}),
    changed: Collection[str] = (),
) -> RouterSettings:
    """Make the settings of a router process.

    Called in that process, once for a router: it reads keys and certificates, and raises the limit of open files to its
    ports' needs. `ModelInfo.fault` reports a model whose files cannot be read.

    Args:
        infos: Every model's description, by the model's name.
        priors: Batch costs of some models according to their profiles, by name.
        identities: By model and variant, of the models with cached answers.
        log_file: Of the log of requests; ``None``: there is none.
        deployed: By model, the revision that it was deployed with, if known.
        changed: Models with another agreed revision. Their files are left to `Keeper.begin`.

    Raises:
        ConfigError: API keys, certificates or the password of Redis are missing, or a pipeline does not fit its models.
    """
    router = config.router
    return RouterSettings(
        models=[
            replace(model, base=deployed[model.name].revision) if model.name in deployed else model
            for model in _routed(config, infos, priors, identities, changed)
        ],
        parts=router_parts(config, infos),
        classes=config.class_settings(),
        limits=config.process_limits(),
        devices=router_devices(config),
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
        make_caches=next((make(config) for make in wings.hooks("composition", "answer_caches")), None),
        make_versions=next((make(config) for make in wings.hooks("composition", "model_versions")), None),
        http=HttpSettings(
            max_body=router.limits.max_body,
            max_held_bytes=max(router.limits.max_body, router.limits.max_bytes // 2),
            offload_above=router.transport.offload_above,
            decode_threads=router.transport.decode_threads,
            in_place_bytes=router.transport.shared_memory // 2,  # the other half is for bodies that have arrived
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
        age_s=None if config.most_routers() == 1 else _GRPC_AGE_S,
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
    changed: Collection[str],
) -> list[RoutedModel]:
    """Every model as a router serves it, from the state that it was deployed with."""
    return [
        _routed_model(
            model,
            infos[model.name],
            priors.get(model.name, ()),
            identities.get(model.name, {}),
            opened=model.name not in changed,
        )
        for model in config.models
    ]


def describe_revision(config: AppArgs, revision: Revision) -> bytes:
    """Describe a state of a model's files for all routers, for `route_revision`.

    Raises:
        ConfigError: The configuration does not fit it.
    """
    info = model_info(revision.model, config, revision.builds, revision.locations)._replace(revision=revision.name)
    make_processor(revision.model, info.signature, revision.locations[""])
    return encode_description(info, revision.identities)


def encode_description(info: ModelInfo, identities: Mapping[str, str]) -> bytes:
    """Encode the description of a state, for `Agreed.described`.

    Args:
        identities: Of its builds, by variant.
    """
    return pickle.dumps((info, dict(identities)))


def route_revision(model: ModelConfig, agreed: Agreed) -> RoutedModel:
    """A model as a router serves it from a state of its files.

    Args:
        agreed: That state. If files beside it, by which requests are priced, cannot be read, `ModelInfo.fault` says
            why.
    """
    info, identities = pickle.loads(agreed.described)  # noqa: S301 - routers of this application have written it
    return _routed_model(model, info, agreed.executions, identities)


def _routed_model(
    model: ModelConfig,
    info: ModelInfo,
    prior: Sequence[Execution],
    identities: Mapping[str, str],
    *,
    opened: bool = True,
) -> RoutedModel:
    """A model as a router serves it, with a processor if it is ``opened``."""
    scheduling = model.scheduling()
    if model.pool is not None:
        scheduling = replace(scheduling, resident_bytes=_resident_bytes(model))
    processor = None
    if opened:
        try:
            processor = _processor(model, info)
        except ConfigError as error:
            _log.error("Model %s: %s", model.name, error)
            info = info._replace(fault=not_loaded(model.name, error).message)
    return RoutedModel(
        info=info,
        scheduling=scheduling,
        processor=processor,
        pool=model.pool,
        prior=prior,
        on_demand=model.pool is None and model.autoscaling.min_replicas == 0,
        cache=_cache(model, identities, info.revision),
        traffic=configured_traffic(model) if info.key else None,
    )


def _processor(model: ModelConfig, info: ModelInfo) -> Processor | None:
    """The processor that prices a model's requests: from the disk if the labels are those served, or from kept files.

    Raises:
        ConfigError: They are not there any more.
    """
    if model.processor is None:
        return None
    version = int(info.version) if info.numbered else None
    located = model if version is None else model.model_copy(update={"version": version})
    try:
        # The files beside the weights are enough, and much faster to read than all files.
        present = make_processor(located, info.signature, find_files(located)[""])
        if present is None or present.labels == info.labels:
            return present
    except ConfigError:
        if not info.revision:  # it was never told apart from others
            raise
    return make_processor(model, info.signature, open_revision(model, info.revision, version).locations[""])


def _resident_bytes(model: ModelConfig) -> int:
    """Assumed memory of a member until a host has measured it; also finds faults of its files."""
    try:
        return max(1, file_bytes(find_files(model)))
    except (ConfigError, OSError):
        return 1


def _cache(model: ModelConfig, identities: Mapping[str, str], revision: str) -> ModelCacheSettings | None:
    if model.cache is None or not model.caches:
        return None
    return ModelCacheSettings(model.cache.ttl_s, int(model.cache.max_bytes), identities, revision)
