"""The server in this process, without Ray: real models, scheduler, worker and listener, and every way to ask them.

It lives in a thread with an event loop of its own, so that clients that block (curl, OpenAI's, Hugging Face's) can be
used from a test as users use them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import onnx_models
import tokenizers
from runtime_harness import batch_same_turn

from serve_app.access.key_file_watcher import KeyFileWatcher
from serve_app.api.http_app import HttpApp, HttpSettings
from serve_app.api.open_inference.sample import decode_sample
from serve_app.backends.backend import Backend
from serve_app.backends.description import Description
from serve_app.composition import identities, model_info, read_args, read_models, router_settings, with_versions
from serve_app.composition.backend import make_backend
from serve_app.composition.keeper import Keeper
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import find_files, make_processor, make_samples, makes_examples
from serve_app.composition.replica import MadeReplica, expected_memory, host_revision, make_replica
from serve_app.composition.revision import find_revision, forget_revisions, open_revision
from serve_app.composition.router import encode_description
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig
from serve_app.domain.agreed import Agreed, Told, decode_agreed, encode_agreed
from serve_app.domain.hosting import LoadOutcome, Owner
from serve_app.domain.service import ModelInfo
from serve_app.payloads import Bundle, BundleResult, Compute
from serve_app.replica.joining import Joining
from serve_app.replica.proof import ProofContext, prove_replica
from serve_app.replica.revisions import Hosted, Revisions
from serve_app.replica.warm_up import warm_up_replica
from serve_app.replica.worker import Worker
from serve_app.router.repository import Repository
from serve_app.router.router import Peers, Router
from serve_app.router.settings import GrpcPort, HttpPort, ReplicaReport, RouterSettings
from serve_app.router.versions import VersionStore
from serve_app.transport.link_server import LinkServer, Recall, Run
from serve_app.transport.send import ReplicaLost

if TYPE_CHECKING:
    from serve_app.pools.host import PoolHost
    from serve_app.pools.hosting import MemberLoader

_REPLICA = "only"
_START_WITHIN_S = 60.0
_TURNS = 20
_T = TypeVar("_T")


def every_kind_of_model(folder: Path) -> dict[str, Any]:
    """A configuration with a model of every task: digits and spoken digits as in the demo, and small ones made here.

    Args:
        folder: Where the small ones are written.
    """
    onnx_models.make(folder / "sum_diff" / "1" / "model.onnx", "sum_diff")
    onnx_models.make(folder / "strings" / "1" / "model.onnx", "string_identity")
    for name in ("words", "moods"):
        onnx_models.make(folder / name / "1" / "model.onnx", "seq_mean")
        make_tokenizer(folder / name / "tokenizer.json")
    labels = ["joy", "anger", "fear", "love", "surprise", "sadness", "calm", "other"]
    return {
        "models": [
            {"name": "digits", "task": "image-classification", "path": "models/digits"},
            {"name": "spoken-digits", "task": "audio-classification", "path": "models/spoken-digits"},
            {
                "name": "words",
                "task": "feature-extraction",
                "path": str(folder / "words"),
                "processor": {"max_length": 16},
                "variants": [{"name": "light", "path": str(folder / "moods")}],
            },
            {
                "name": "moods",
                "task": "text-classification",
                "path": str(folder / "moods"),
                "processor": {"max_length": 16, "labels": labels, "output": "embedding"},
            },
            {"name": "sum_diff", "path": str(folder / "sum_diff")},
            {"name": "strings", "path": str(folder / "strings")},
        ]
    }


def make_tokenizer(path: Path) -> None:
    """Words by spaces; ``[CLS]`` before every text."""
    words = [
        "[UNK]",
        "[PAD]",
        "[CLS]",
        *[
            "the",
            "cat",
            "dog",
            "sat",
            "on",
            "a",
            "mat",
            "and",
            "sun",
            "moon",
            "good",
            "bad",
            "day",
            "one",
            "two",
            "three",
        ],
    ]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", vocabulary["[CLS]"])]
    )
    tokenizer.save(str(path))


class LocalServer:
    """Serves one configuration on a free port, from `__enter__` to `__exit__`.

    Args:
        args: What stands under ``args:``.
        settings: Limits of the HTTP side.
        version_store: Shared with other servers.
        peers: Other servers that are asked and told as routers of one application are.
        linked: Whether its replicas are reached by links, as those on a router's node are.

    Attributes:
        url: Where it listens.
        app: The HTTP application, as a server in front would ask it.
        grpc: Where it listens for gRPC.
        keys: Its API keys, where it has any.
        router: The router.
        keeper: Keeps its router to what is agreed on.
        replicas: What its replicas run on, by their names.
        hosts: The hosts of its pools, by their names: the pool's, a dash, and a number.
        register: Where it is written down what is agreed on.
    """

    url: str
    app: HttpApp
    grpc: str
    keys: KeyFileWatcher | None
    router: Router
    keeper: Keeper

    def __init__(
        self,
        args: Mapping[str, Any],
        settings: HttpSettings | None = None,
        version_store: VersionStore | None = None,
        peers: Peers | None = None,
        *,
        linked: bool = False,
    ) -> None:
        self._linked = linked
        self._links: dict[str, _Links] = {}
        self._config = with_versions(read_args(args))
        self._settings = settings
        self._version_store = version_store
        self._peers = peers
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._started = threading.Event()
        self._fault: BaseException | None = None
        self.replicas: dict[str, Revisions] = {}
        self.hosts: dict[str, PoolHost] = {}
        self._deployed: dict[str, Agreed] = {}
        self._infos: dict[str, ModelInfo] = {}
        self._reports: dict[str, dict[str, ReplicaReport]] = {}
        self._loaders: dict[str, MemberLoader] = {}
        self._named: set[str] = set()
        self.register = Register()
        self._thread = threading.Thread(target=self._run, name="local-server")

    def __enter__(self) -> LocalServer:
        self._thread.start()
        assert self._started.wait(_START_WITHIN_S), "the server did not start"
        if self._fault is not None:
            raise self._fault
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do something in the server's own event loop, and wait for it.

        What clients send there in one turn has all arrived before the server reads any of it.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def cut_link(self, replica: str) -> None:
        """End the link to a replica, as its process's end would, and take no other."""
        self.run(_in_turn(self._links[replica].close))

    def add_models(self, args: Mapping[str, Any]) -> None:
        """Serve more models: those that stand under ``args:`` of another configuration."""
        self.run(_in_turn(lambda: self._add(with_versions(read_args(args)))))

    def remove_model(self, name: str, successor: str | None = None) -> Future[None]:
        """Serve a model no more; see `Router.remove_model`. The future ends when nothing of it is under way."""
        removal = self.run(_in_turn(lambda: self.router.remove_model(name, successor)))
        return asyncio.run_coroutine_threadsafe(_awaited(removal), self._loop)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.is_set():
                raise
            self._fault = error  # told to who waits in `__enter__`
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._begin(replace(_router_settings(self._config, read_models(self._config)), models=()))
        self._add(self._config)
        self.router.restore_traffic()
        await self._open()
        for link in self._links.values():
            await link.up()
        self._started.set()
        await self._stop.wait()
        await self.router.close(1.0, grace_s=0.0)
        for link in self._links.values():
            link.close()
        for revisions in self.replicas.values():
            await revisions.close()
        for host in self.hosts.values():
            host.close()

    def _begin(self, settings: RouterSettings) -> Repository:
        settings = replace(
            settings,
            http=self._settings or HttpSettings(),
            http_port=HttpPort("127.0.0.1", 0),
            grpc_port=GrpcPort("127.0.0.1", 0),
        )
        self.keys = settings.keys
        fleet = _Fleet(self.replicas, lambda: self.keeper)
        repository = Repository(fleet, self.register, self._deployed)
        self.router = Router(
            settings,
            self._call,
            self._peers,
            self._version_store,
            loading=repository,
            change_host=self._change_host,
            on_stale=self._catch_up,
        )
        self.router.start()
        self.keeper = Keeper(self._config, self.router, self.register, self._deployed)
        self.app = self.router.app
        return repository

    async def _open(self) -> None:
        await self.router.opened()
        assert self.router.http_address is not None
        assert self.router.grpc_address is not None
        self.url = "http://{}:{}".format(*self.router.http_address)
        self.grpc = "{}:{}".format(*self.router.grpc_address)

    def replace_router(self) -> None:
        """The router dies, and another process takes its place, with the replicas and hosts that there are."""
        self.run(self._replace_router())

    async def _replace_router(self) -> None:
        await self.router.close(1.0, grace_s=0.0)
        changed = {}
        for model, before in self._deployed.items():
            agreed = await self.register.read(model)
            if agreed is not None and agreed.revision != before.revision:
                changed[model] = agreed
        known = {model.name: identities(model, find_files(model)) for model in self._config.models if model.caches}
        repository = self._begin(
            router_settings(
                self._config, self._infos, priors={}, identities=known, deployed=self._deployed, changed=changed
            )
        )
        self.router.restore_traffic()
        for model, agreed in changed.items():
            self.keeper.begin(model, agreed)
            await repository.resume(model)
        for model, reports in self._reports.items():
            self.router.on_replicas(model, reports)
        for pool in self._loaders:
            self._add_hosts(pool, 0)
        await self._open()

    def retry(self) -> None:
        """Have the router try again to serve what it could not read, as health checks do, and wait for that."""
        self.run(self._retry())

    async def _retry(self) -> None:
        await self.keeper.retry()

    def _catch_up(self, model: str) -> None:
        self.keeper.catch_up(model)

    async def _call(self, _model: str, bundle: Bundle, replica: str | None, _nbytes: int) -> BundleResult:
        assert replica is not None
        running = self.hosts.get(replica) or self.replicas.get(replica)
        if running is None:
            raise ReplicaLost(f"{replica} is gone", reached=False)
        return await running.run(msgspec.structs.replace(bundle, parts=None))  # which does not travel

    async def _change_host(
        self, _pool: str, host: str, owner: Owner, evicted: Sequence[str], load: str, urgent: bool
    ) -> LoadOutcome:
        if host not in self.hosts:
            raise ReplicaLost(f"{host} is gone", reached=False)
        return await self.hosts[host].change(owner, evicted, load, urgent=urgent)

    def lose_host(self, pool: str, name: str) -> None:
        """A host dies, and another process, with nothing loaded, takes its place under another name."""
        self.run(_in_turn(lambda: self._replace_host(pool, name)))

    def _replace_host(self, pool: str, name: str) -> None:
        self.hosts.pop(name).close()
        self._add_hosts(pool, 1)

    def _add_hosts(self, pool: str, more: int) -> None:
        from serve_app.pools.host import PoolHost

        loader = self._loaders[pool]
        number = 1
        for _ in range(more):
            while f"{pool}-{number}" in self._named:
                number += 1
            self._named.add(f"{pool}-{number}")
            self.hosts[f"{pool}-{number}"] = PoolHost(pool, loader.load)
        found = [host for host in self.hosts if host.startswith(f"{pool}-")]
        self.router.on_hosts(pool, dict.fromkeys(found, ReplicaReport()))

    def _add(self, config: AppArgs) -> None:
        described = read_models(config)
        routed = {model.name: model for model in _router_settings(config, described).models}
        for model in config.models:
            revision = find_revision(model)
            info = self._infos[model.name] = routed[model.name].info._replace(revision=revision.name)
            base = self._deployed[model.name] = Agreed(
                revision.name, revision.version, described=encode_description(info, revision.identities)
            )
            if model.pool is not None:
                self.router.add_model(routed[model.name])
                continue
            first = host_revision(revision, described[model.name], _make)
            replica = f"{model.name}-{_REPLICA}"
            while replica in self.replicas:  # that of a model of this name that was removed
                replica += "-again"
            self.replicas[replica] = Revisions(
                model.name,
                first,
                base,
                partial(_load, model),
                partial(_weigh, model),
                partial(self.register.read, model.name),
                partial(forget_revisions, model),
                model.resources.memory_limit,
            )
            if self._linked:
                revisions = self.replicas[replica]
                self._links[replica] = _Links(model.name, revisions.run, revisions.recall)
            cached = routed[model.name].cache
            report = ReplicaReport(
                joinable=first.told.joinable,
                not_warmed=first.told.not_warmed,
                compute=first.told.compute,
                identities={} if cached is None else cached.identities,
                base=base.revision,
                revision=base.revision,
                address=self._links[replica].address if self._linked else None,
            )
            self.router.add_model(replace(routed[model.name], info=info, on_demand=False, base=base.revision))
            self._reports[model.name] = {replica: report}
            self.router.on_replicas(model.name, {replica: report})
        for pool in config.pools:
            from serve_app.pools.hosting import MemberLoader, MemberPlan

            plans = {
                model.name: MemberPlan(find_revision(model), described[model.name])
                for model in config.models
                if model.pool == pool.name
            }
            self._loaders[pool.name] = MemberLoader(plans, partial(make_replica, batch=batch_same_turn))
            self._add_hosts(pool.name, pool.hosts)


async def _in_turn(do: Callable[[], _T]) -> _T:
    return do()


async def _awaited(task: asyncio.Task[None]) -> None:
    await task


def _router_settings(config: AppArgs, described: Mapping[str, Mapping[str, Description]]) -> RouterSettings:
    infos = {model.name: model_info(model, config, described[model.name]) for model in config.models}
    known = {model.name: identities(model, find_files(model)) for model in config.models if model.caches}
    return router_settings(config, infos, priors={}, identities=known)


class _Links(LinkServer):
    """The links of a replica in this process."""

    def __init__(self, name: str, run: Run, recall: Recall) -> None:
        super().__init__(name, run, recall)
        self._joined = asyncio.Event()

    def joined(self, link: Any) -> None:
        super().joined(link)
        self._joined.set()

    async def up(self) -> None:
        """Wait until the router has its end of a link: a few turns after this one."""
        await self._joined.wait()
        for _ in range(_TURNS):
            await asyncio.sleep(0)


class Register:
    """Where it is written down what is agreed on: in this process."""

    def __init__(self) -> None:
        self._agreed: dict[str, bytes] = {}

    async def read(self, model: str) -> Agreed | None:
        """See `serve_app.domain.agreed.Register`."""
        content = self._agreed.get(model)
        return None if content is None else decode_agreed(content)

    async def write(self, model: str, agreed: Agreed) -> None:
        """See `serve_app.domain.agreed.Register`."""
        self._agreed[model] = encode_agreed(agreed)


class _Fleet:
    """The one router and the replicas of this process."""

    def __init__(self, replicas: Mapping[str, Revisions], keeper: Callable[[], Keeper]) -> None:
        self._replicas = replicas
        self._keeper = keeper

    async def find(self, model: str) -> Agreed:
        return await self._keeper().find(model)

    async def prepare(self, model: str, found: Agreed, claim: str) -> Sequence[Told]:
        await self._keeper().prepare(model, found)
        return [await revisions.prepare(found.revision, found.version, claim) for revisions in self._of(model)]

    async def renew(self, model: str, claim: str) -> None:
        for revisions in self._of(model):
            revisions.renew(claim)

    async def settle_routers(self, model: str) -> None:
        await self._keeper().settle(model)

    async def settle_replicas(self, model: str, given_up: str | None = None) -> int:
        return len([await revisions.settle(given_up) for revisions in self._of(model)])

    def _of(self, model: str) -> list[Revisions]:
        return [revisions for name, revisions in self._replicas.items() if name.startswith(f"{model}-{_REPLICA}")]


def _load(model: ModelConfig, name: str, version: int | None) -> Hosted:
    revision = open_revision(model, name, version)
    return host_revision(revision, revision.builds, _make)


def _weigh(model: ModelConfig, name: str, version: int | None) -> int:
    return expected_memory(open_revision(model, name, version))


def _make(model: ModelConfig, builds: Mapping[str, Description], locations: Mapping[str, ModelLocation]) -> MadeReplica:
    """A replica that has run its smallest input, and predicts from what it is asked only."""
    backends: dict[str, Backend] = {}
    for variant, location in locations.items():
        backends[variant] = make_backend(model, location, builds[variant], gpu_available=False)
        backends[variant].load()
    signature = backends[""].signature
    processor = make_processor(model, signature, locations[""], backends[""])
    samples = make_samples(model, signature, decode_sample, rows=builds[""].joinable.rows)
    warm = warm_up_replica(model.name, backends, makes_examples(processor), samples, max_rows=1, budget_s=0.5)
    proofs = ProofContext(model.name, model.batching.configured_rows, model.batching.tolerance)
    graph = {variant: build.joinable for variant, build in builds.items()}
    verdicts = prove_replica(proofs, backends, graph, makes_examples(processor), samples, warm.examples)
    needed = {variant: len(backend.signature.inputs) for variant, backend in backends.items()}
    joining = Joining(model.name, verdicts, needed)
    worker = Worker(
        scheduling=model.scheduling(),
        backends=backends,
        processor=processor,
        preprocess_threads=model.resources.preprocess_threads,
        batch=batch_same_turn,
        examples=warm.examples,
        joining=joining,
        proofs=proofs,
        verify=model.batching.verify,
        refuse_non_finite=model.health.refuse_non_finite,
    )
    return MadeReplica(worker, warm, joining, Compute(1, 1, "as in every test", device="cpu"))
