"""The server in this process, without Ray: real models, scheduler, worker and listener, and every way to ask them.

It lives in a thread with an event loop of its own, so that clients that block (curl, OpenAI's, Hugging Face's) can be
used from a test as users use them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import onnx_models
import tokenizers
from runtime_harness import batch_same_turn

from serve_app.app import model_info, read_models
from serve_app.config import AppArgs, ModelConfig, parse_args
from serve_app.config.identity import identities
from serve_app.inference.backend import Backend
from serve_app.inference.description import Description
from serve_app.inference.onnx import OnnxBackend
from serve_app.payloads import Bundle, BundleResult
from serve_app.processors.processor import Processor
from serve_app.protocols.grpc_app import GrpcApp
from serve_app.protocols.grpc_listener import GrpcListener
from serve_app.protocols.http import HttpApp, HttpSettings, create_app
from serve_app.protocols.listener import Listener, bind
from serve_app.protocols.open_inference.sample import decode_sample
from serve_app.runtime.cache import ResponseCache
from serve_app.runtime.dispatcher import Dispatcher
from serve_app.runtime.joining import Joining
from serve_app.runtime.key_metrics import KeysCollector
from serve_app.runtime.key_watch import KeyWatch
from serve_app.runtime.metrics import RouterMetrics
from serve_app.runtime.replica_proof import Proofs, prove_replica
from serve_app.runtime.replica_warm_up import ReplicaWarmUp, warm_up_replica
from serve_app.runtime.service import Service
from serve_app.runtime.worker import Worker
from serve_app.scheduling.scheduler import Scheduler

_REPLICA = "only"
_START_WITHIN_S = 60.0
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

    Attributes:
        url: Where it listens.
        app: The HTTP application.
        grpc: Where it listens for gRPC.
        keys: Its API keys, where it has any.
    """

    url: str
    grpc: str
    keys: KeyWatch | None
    app: HttpApp

    def __init__(self, args: Mapping[str, Any], settings: HttpSettings | None = None) -> None:
        self._config = parse_args(args)
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._started = threading.Event()
        self._fault: BaseException | None = None
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
        described = read_models(self._config)
        started = {model.name: _worker(model, described[model.name]) for model in self._config.models}
        workers = {name: worker for name, (worker, _, _) in started.items()}
        services: list[Service] = []

        async def send(model: str, bundle: Bundle, _replica: str | None, _nbytes: int) -> BundleResult:
            result = await workers[model].run(bundle)
            if result.joinable is not None:
                services[0].on_joinable(model, result.joinable)
            return result

        service, metrics, cache = _service(self._config, described, send)
        services.append(service)
        for name, (_, warm, joining) in started.items():
            service.on_warm_up(name, [warm.reason])
            service.on_joinable(name, joining.verdicts)
        if cache is not None:
            cache.start()
        self.keys = self._config.router.watched_keys(self._config.classes.levels())
        guard = None if self.keys is None else self.keys.guard
        self.app = create_app(service, self._settings, guard=guard)
        grpc = GrpcListener(
            GrpcApp(service, self.app.bodies, guard, typed_answers=self._config.router.grpc_outputs == "as_inputs"),
            "127.0.0.1",
            0,
        )
        await grpc.start()
        self.grpc = f"127.0.0.1:{grpc.port}"
        if self.keys is not None:
            metrics.registry.register(KeysCollector(self.keys.guard))
            self.keys.start()
        listener = Listener(self.app, bind("127.0.0.1", 0))
        await listener.start()
        self.url = f"http://127.0.0.1:{listener.port}"
        self._started.set()
        await self._stop.wait()
        if self.keys is not None:
            self.keys.close()
        await grpc.close(0.0)
        await listener.close(1.0, grace_s=0.0)
        if cache is not None:
            await cache.close()
        for worker in workers.values():
            worker.close()


def _worker(model: ModelConfig, builds: Mapping[str, Description]) -> tuple[Worker, ReplicaWarmUp, Joining]:
    """A worker that has run its smallest input, and predicts from what it is asked only."""
    locations = model.locations()
    backends: dict[str, Backend] = {}
    for variant, location in locations.items():
        settings = model.onnx_settings(location.model_file, gpu_available=False, layout=builds[variant].layout)
        backends[variant] = OnnxBackend(settings)
        backends[variant].load()
    signature = backends[""].signature
    processor = model.make_processor(signature, locations[""])
    samples = model.make_samples(signature, decode_sample, rows=builds[""].joinable.rows)
    warm = warm_up_replica(model.name, backends, processor, samples, max_rows=1, budget_s=0.5)
    proofs = Proofs(model.name, model.batching.max_rows, model.batching.tolerance)
    graph = {variant: build.joinable for variant, build in builds.items()}
    verdicts = prove_replica(proofs, backends, graph, processor, samples, warm.examples)
    needed = {variant: len(backend.signature.inputs) for variant, backend in backends.items()}
    joining = Joining(model.name, verdicts, needed)
    worker = Worker(
        scheduling=model.scheduling(),
        backends=backends,
        processor=processor,
        preprocess_threads=1,
        batch=batch_same_turn,
        examples=warm.examples,
        joining=joining,
        proofs=proofs,
        verify=model.batching.verify,
        refuse_non_finite=model.health.refuse_non_finite,
    )
    return worker, warm, joining


def _service(
    config: AppArgs, described: Mapping[str, Mapping[str, Description]], send: Any
) -> tuple[Service, RouterMetrics, ResponseCache | None]:
    infos = {model.name: model_info(model, config, described[model.name]) for model in config.models}
    processors: dict[str, Processor] = {}
    for model in config.models:
        processor = model.make_processor(infos[model.name].signature, model.locations()[""])
        if processor is not None:
            processors[model.name] = processor
    scheduling = config.model_scheduling()
    scheduler = Scheduler(
        scheduling.values(),
        config.class_settings(),
        config.process_limits(),
        config.groups(),
    )
    metrics = RouterMetrics(scheduler)
    dispatcher = Dispatcher(scheduler, send, metrics, config.router.bundle_timeout_s)
    for name in infos:
        dispatcher.on_replicas(name, [f"{name}-{_REPLICA}"])

    async def page() -> str:
        return metrics.render()

    known = {model.name: identities(model, model.locations()) for model in config.models if model.caches}
    caches = config.cache_settings(known)
    cache = None if caches is None else ResponseCache(caches, dispatcher, metrics)

    service = Service(
        models=infos,
        processors=processors,
        dispatcher=dispatcher,
        metrics=metrics,
        on_demand=frozenset(),
        metrics_page=page,
        scheduling=scheduling,
        cache=cache,
    )
    return service, metrics, cache
