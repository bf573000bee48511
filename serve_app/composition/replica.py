"""Builds a replica of a model: loads and warms up its builds, proves what may share runs, and makes the worker."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from serve_app.api.open_inference.sample import decode_sample
from serve_app.backends.backend import Backend, SessionLost
from serve_app.backends.description import Description
from serve_app.backends.joining.verdict_store import VerdictStore, identity_key, record_key
from serve_app.backends.profiler import device_name
from serve_app.backends.samples import Samples
from serve_app.composition.backend import load_builds
from serve_app.composition.compute import choose_compute, choose_rows, of_one, with_threads
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import find_files, make_processor, make_samples, makes_examples, memory_of
from serve_app.composition.revision import Revision, keep_revision
from serve_app.composition.row_sizes import choose_row_sizes
from serve_app.config.model import ModelConfig
from serve_app.domain.agreed import Told
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app.payloads import Compute, Execution
from serve_app.processors.processor import Processor, pads_to_buckets
from serve_app.replica.compute import AtOnce
from serve_app.replica.joining import Joining
from serve_app.replica.pieces import padded_lengths
from serve_app.replica.process_memory import RunMemory
from serve_app.replica.proof import ProofContext, proof_budget_s, prove_replica
from serve_app.replica.revisions import Hosted
from serve_app.replica.runner import BatchTogether
from serve_app.replica.turn import Turn
from serve_app.replica.warm_up import ReplicaWarmUp, warm_up_replica
from serve_app.replica.worker import NO_SHARES, Worker

_log = logging.getLogger(__name__)

_SHORT_S = 0.02
"""Time for the warm-up, and again for the proof, of a member of a pool, whose clients wait for both: seconds. Smallest
and largest batches are measured in it, and what lies between is interpolated."""


@dataclass(frozen=True, slots=True)
class MadeReplica:
    """The parts of a replica.

    Attributes:
        worker: Runs bundles.
        warm_up: Measurements before the first one.
        joining: Which requests may share runs.
        compute: Its threads and instances.
    """

    worker: Worker
    warm_up: ReplicaWarmUp
    joining: Joining
    compute: Compute


@dataclass(frozen=True, slots=True)
class AsMember:
    """Context of a model at a host of a pool.

    Attributes:
        turn: Shared with the host's other members.
        identities: By variant, the identity of the build.
        executions: Batch costs of an earlier load, which need not be measured again.
    """

    turn: Turn
    identities: Mapping[str, str]
    executions: Sequence[Execution] = ()


def make_replica(
    model: ModelConfig,
    builds: Mapping[str, Description],
    batch: BatchTogether,
    *,
    gpu_available: bool = False,
    records: VerdictStore | None = None,
    min_share: Mapping[Priority, float] = NO_SHARES,
    protect: float = 0.0,
    on_lost: Callable[[], None] | None = None,
    locations: Mapping[str, ModelLocation] | None = None,
    member: AsMember | None = None,
) -> MadeReplica:
    """Load every build of a model and warm it up, in this process.

    Args:
        model: Validated.
        builds: Contents of its files, by variant.
        batch: Joins several bundles of one batch.
        gpu_available: Whether this process has a GPU, whole or in part.
        records: Keeps verdicts between starts; ``None``: they are not kept.
        min_share: Guaranteed share of the replica's time per class, 0 to 1.
        protect: Part of class `high` that is to be in time whatever that costs the others, 0 to 1.
        on_lost: Called when a session has ended, before its requests are answered.
        locations: By default its present files.
        member: Context at a host of a pool; ``None``: it has this process alone.

    Raises:
        ConfigError: A build cannot be loaded, or its session has ended before its first request.
    """
    began = time.monotonic()
    locations = find_files(model) if locations is None else locations
    with _loaded(model, builds, locations, gpu_available=gpu_available) as backends:
        signature, has_rows = backends[""].signature, builds[""].joinable.rows
        processor = make_processor(model, signature, locations[""], backends[""])
        samples = make_samples(model, signature, decode_sample, rows=has_rows)
        loaded_s = time.monotonic() - began
        makes = makes_examples(processor)
        model, compute, max_rows, warm_up = _measure(
            model, builds, locations, backends, makes, samples, loaded_s, member, gpu_available=gpu_available
        )
        compute = compute._replace(device=device_name(backends[""].device), row_sizes=model.resources.chosen_sizes)
        _log.info("%s computes with %s", model.name, compute.told)
        padding = _padding(makes)
        keys = {
            variant: _key(model, locations[variant], builds[variant], backend, max_rows, padding)
            if member is None
            else identity_key(member.identities[variant], backend.device, locations[variant].kind.versions(), padding)
            for variant, backend in backends.items()
        }
        proof_s = _SHORT_S if member is not None else proof_budget_s(time.monotonic() - began)
        proofs = ProofContext(model.name, max_rows, model.batching.tolerance, proof_s, records, keys)
        graph = {variant: build.joinable for variant, build in builds.items()}
        verdicts = prove_replica(proofs, backends, graph, makes, samples, warm_up.examples)
        needed = {variant: len(backend.signature.inputs) for variant, backend in backends.items()}
        joining = Joining(model.name, verdicts, needed, model.scheduling().fallbacks)
        worker = Worker(
            scheduling=replace(model.scheduling(), max_rows=max_rows),
            backends=backends,
            processor=processor,
            preprocess_threads=model.resources.preprocess_threads,
            batch=batch,
            warm_up=warm_up.executions,
            examples=warm_up.examples,
            joining=joining,
            proofs=proofs,
            verify=model.batching.verify,
            refuse_non_finite=model.health.refuse_non_finite,
            min_share=min_share,
            protect=protect,
            planned=member is not None,
            on_lost=on_lost,
            turn=None if member is None else member.turn,
            lengths=() if processor is None else padded_lengths(processor, warm_up.executions, backends[""].device),
            instances=compute.instances,
        )
    return MadeReplica(worker, warm_up, joining, compute)


def _measure(
    model: ModelConfig,
    builds: Mapping[str, Description],
    locations: Mapping[str, ModelLocation],
    backends: dict[str, Backend],
    processor: Processor | None,
    samples: Samples,
    loaded_s: float,
    member: AsMember | None,
    *,
    gpu_available: bool,
) -> tuple[ModelConfig, Compute, int, ReplicaWarmUp]:
    """Warm a model up, and choose its row sizes, its threads, its instances and most rows of a batch.

    Args:
        backends: Loaded; they are loaded again with other row sizes or threads.
        processor: Makes the inputs, if there is one.
        loaded_s: Time to load all builds.

    Returns:
        The model with its row sizes and threads, what it computes with, most rows of a batch, and the measurements.
    """
    has_rows, max_rows = builds[""].joinable.rows, model.batching.configured_rows
    memory = RunMemory(model.resources.memory_limit)
    chooses = member is None and backends[""].device == "cpu" and has_rows and model.batching.max_rows == "auto"
    if chooses:
        max_rows = model.most_rows
    budget_s: float | None = model.health.warm_up_s
    if member is not None:
        budget_s = None if member.executions else min(model.health.warm_up_s, _SHORT_S)
    warm = partial(
        warm_up_replica,
        model.name,
        processor=processor,
        samples=samples,
        max_rows=max_rows if has_rows else 1,
        budget_s=budget_s,
        fits=memory.fits if chooses else None,
    )
    warm_up = warm(backends)
    if member is not None:
        warm_up = warm_up._replace(executions=list(member.executions) or warm_up.executions)
        return model, of_one(model, "it is of a pool"), max_rows, warm_up
    fills = has_rows and backends[""].device != "cpu" and not locations[""].kind.runs_code
    if fills and model.resources.row_sizes == "auto":
        reload = partial(
            load_builds, locations=locations, builds=builds, backends=backends, tell=_log.warning,
            gpu_available=gpu_available,
        )  # fmt: skip
        model, warm_up = choose_row_sizes(model, backends, warm_up, reload, partial(warm, backends))
    threads = model.resources.session_threads
    model, compute = choose_compute(
        model, locations, builds, backends, warm_up.middle, loaded_s, _log.warning, gpu_available=gpu_available
    )
    if compute.threads != threads:
        warm_up = warm(backends)
    if compute.instances > 1:
        at_once = {variant: AtOnce(backend, compute.instances) for variant, backend in backends.items()}
        together = warm(cast("Mapping[str, Backend]", at_once))
        warm_up = warm_up._replace(executions=together.executions or warm_up.executions)
    if chooses:
        max_rows = choose_rows(model, warm_up.executions, memory)
        compute = compute._replace(max_rows=max_rows)
    return model, compute, max_rows, warm_up


def host_revision(revision: Revision, builds: Mapping[str, Description], make: Callable[..., MadeReplica]) -> Hosted:
    """Load a revision of a model, in this process, and keep its files until it is closed.

    Args:
        builds: Contents of its files, by variant.
        make: `make_replica`, with the arguments common to all revisions.

    Raises:
        ConfigError: A build cannot be loaded, or its files have changed meanwhile.
    """
    replica = make(revision.model, builds, locations=revision.locations)
    if revision.changed():
        replica.worker.close()
        raise ConfigError((f"model {revision.model.name!r}: its files changed while they were loaded; load it again",))
    warm_up = replica.warm_up
    return Hosted(
        revision.name,
        replica.worker,
        Told(warm_up.executions, dict(replica.joining.verdicts), warm_up.reason, replica.compute),
        keep_revision(revision).close,
    )


def expected_memory(revision: Revision) -> int:
    """Largest memory of a revision, bytes, as of `memory_of`."""
    return memory_of(revision.locations)


@contextmanager
def _loaded(
    model: ModelConfig,
    builds: Mapping[str, Description],
    locations: Mapping[str, ModelLocation],
    *,
    gpu_available: bool,
) -> Iterator[dict[str, Backend]]:
    """All builds of a model, loaded, by variant. They are closed if an exception follows.

    Raises:
        ConfigError: One cannot be loaded, or its session has ended.
    """
    with ExitStack() as unless_kept:
        backends: dict[str, Backend] = {}
        unless_kept.callback(_close, backends)
        load_builds(model, locations, builds, backends, _log.warning, gpu_available=gpu_available)
        try:
            yield backends
        except SessionLost as error:
            problem = (
                f"model {model.name!r}: its session ended before the first request: {error.message}; see the log. If"
                " memory was short, lower batching.max_rows; if it cannot run these inputs, give others in warm_up"
            )
            raise ConfigError((problem,)) from None
        unless_kept.pop_all()


def _close(backends: Mapping[str, Backend]) -> None:
    for backend in backends.values():
        backend.close()


def _padding(processor: Processor | None) -> Any:
    """Sizes that inputs are padded to, and a digest of a padded one: padding tokens come from files beside it."""
    if processor is None or pads_to_buckets(processor):
        return None
    buckets = processor.buckets
    try:
        padded = processor.pad(processor.example(1, buckets[0]), buckets[1])
    except Exception:  # foreign code: inputs that it cannot pad are not padded
        return buckets
    return buckets, {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in padded.items()}


def _key(
    model: ModelConfig, location: ModelLocation, build: Description, backend: Backend, max_rows: int, padding: Any
) -> str:
    """The key of a build's verdict: its file, and further influences on its numbers."""
    warm_up = model.warm_up
    facts: list[Any] = [
        backend.device,
        with_threads(model, model.resources.session_threads).resources.model_dump(mode="json", exclude={"instances"}),
        model.backend_options,
        None if warm_up is None else warm_up.model_dump(mode="json"),
        model.task,
        _code(location),
    ]
    if model.processor is not None:
        facts.append(model.processor.model_dump(mode="json"))  # its tensors and padding were tried
    facts.append(padding)
    batching = model.batching
    return record_key(
        location.model_file,
        location.kind.versions(),
        facts,
        max_rows,
        batching.tolerance,
        sorted(build.layout.axes.items()),
    )


def _code(location: ModelLocation) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a program's files, any of which may affect its answers."""
    if not location.kind.runs_code:
        return []
    states = [(str(file.relative_to(location.root)), file.stat()) for file in location.files()]
    return sorted((name, state.st_size, state.st_mtime_ns) for name, state in states)
