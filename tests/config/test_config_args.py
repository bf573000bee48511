"""What stands under ``args:``: defaults, every kind of fault with its exact words, and the values made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serve_app.backends.onnx.backend import OnnxSettings
from serve_app.backends.onnx.kind import ONNX, onnx_settings
from serve_app.composition.access import tls_problems
from serve_app.composition.backend import build_settings, read_options
from serve_app.config.args import AppArgs, parse_args
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app.scheduling.settings import BreakerSettings, ClassSettings, ModelScheduling, ProcessLimits

VERSIONS = pytest.mark.wing("versions")

MIB = 1024**2
WITH_GPU = {"gpus": 1.0}


def model(**keys: Any) -> dict[str, Any]:
    """A valid model with some keys changed."""
    return {"name": "digits", "path": "models/digits"} | keys


def problems(args: Any) -> tuple[str, ...]:
    """The faults that parsing finds."""
    with pytest.raises(ConfigError) as caught:
        parse_args(args)
    return caught.value.problems


def with_model(**keys: Any) -> dict[str, Any]:
    """Arguments with one model."""
    return {"models": [model(**keys)]}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param(None, "args.models: required, but missing", id="nothing"),
        pytest.param(5, "args: must be a mapping, got 5", id="no mapping"),
        pytest.param({"models": []}, "args.models: needs at least one model", id="no model"),
        pytest.param(
            with_model() | {"router": {"http": {"port": 8100}, "grpc": {"port": 8100}}},
            "args.router.grpc.port: must be another port than router.http.port",
            id="one port twice",
        ),
        pytest.param({"models": {}}, "args.models: must be a list, got {}", id="no list"),
        pytest.param(
            with_model(versions=[3, 5], version=3),
            "args.models[0].version: leave this out: versions says which ones are served",
            id="version and versions",
            marks=VERSIONS,
        ),
        pytest.param(
            with_model(aliases={"stable": 3}),
            "args.models[0].aliases: is for models that are served in several versions; set versions",
            id="alias without versions",
            marks=VERSIONS,
        ),
        pytest.param(
            with_model(versions=[3, 5], aliases={"rc": 7}),
            "args.models[0].aliases.rc: there is no version '7'; versions: 3, 5",
            id="alias of no version",
            marks=VERSIONS,
        ),
        pytest.param(
            with_model(versions=[3, 5], traffic={"rc": 7}),
            "args.models[0].traffic.rc: is no version and no alias; versions: 3, 5; aliases: stable",
            id="weight of nothing",
            marks=VERSIONS,
        ),
        pytest.param(
            with_model(versions=[3, 3]),
            "args.models[0].versions: names a version twice",
            id="one version twice",
            marks=VERSIONS,
        ),
        pytest.param(
            with_model(versions=[3], profile="p.json"),
            "args.models[0].profile: is measured of one version; leave this out",
            id="profile of versions",
            marks=VERSIONS,
        ),
        pytest.param({"models": [5]}, "args.models[0]: must be a mapping, got 5", id="model is a number"),
        pytest.param({"models": [{"name": "a"}]}, "args.models[0].path: required, but missing", id="missing key"),
        pytest.param(
            {"models": [model(name="a"), model(name="b", batching={"max_row": 8})]},
            "args.models[1].batching.max_row: unknown key; did you mean max_rows?",
            id="misspelt key",
        ),
        pytest.param(
            with_model(variants=[{"name": "int8", "path": "p", "zzz": 1}]),
            "args.models[0].variants[0].zzz: unknown key; known here: name, path, version",
            id="key like no other",
        ),
        pytest.param(
            with_model() | {"clases": {}}, "args.clases: unknown key; did you mean classes?", id="misspelt section"
        ),
        pytest.param(
            with_model(task="image-classification", processor={"siz": 28}),
            "args.models[0].processor.siz: unknown key; did you mean size?",
            id="misspelt processor key",
        ),
        pytest.param(
            with_model(task="audio-classification", processor={"size": 28}),
            "args.models[0].processor.size: unknown key; known here: activation, buckets, class, ignore_keys, labels,"
            " max_seconds, normalize, output, sampling_rate, top_k, truncate",
            id="processor key of another task",
        ),
        pytest.param(
            with_model(task="image-classification", processor={"size": "x"}),
            "args.models[0].processor.size: must be a whole number, got 'x'; or must be a list, got 'x'",
            id="either a number or a list",
        ),
        pytest.param(
            with_model(processor={"size": 28}),
            "args.models[0].processor: a model of task tensors has no processor; name the task it is for",
            id="processor without a task",
        ),
        pytest.param(
            with_model(task="image-clasification"),
            "args.models[0].task: unknown task 'image-clasification'; did you mean image-classification?",
            id="misspelt task",
        ),
        pytest.param(
            with_model(task="thumbnail"),
            "args.models[0].task: unknown task 'thumbnail'; known tasks: tensors, image-classification,"
            " audio-classification, feature-extraction, text-classification, zero-shot-classification; others need"
            " processor.class",
            id="task without a processor",
        ),
        pytest.param(
            with_model(task="my_package:Thumbnail"),
            "args.models[0].task: must be lower-case letters, digits and '-', as in image-thumbnail, got"
            " 'my_package:Thumbnail'; a class belongs into processor.class",
            id="class as task",
        ),
        pytest.param(
            with_model(task="image-thumbnail", processor={"class": "Thumbnail"}),
            "args.models[0].processor.class: must be module:Class or file.py:Class, got 'Thumbnail'",
            id="class without its module",
        ),
        pytest.param(
            with_model(task="image-classification", processor={"class": None}),
            "args.models[0].task: processor.class is empty: name a class, or leave it out",
            id="class that is empty",
        ),
        pytest.param(
            with_model(name="bad/name"),
            "args.models[0].name: must be printable characters without '/', got 'bad/name'",
            id="name of two segments",
        ),
        pytest.param(
            with_model(name="*"),
            "args.models[0].name: must not be '*', which stands for every model in a file of API keys",
            id="name of every model",
        ),
        pytest.param(
            with_model(variants=[{"name": "é", "path": "v"}]),
            "args.models[0].variants[0].name: must be ASCII without ',': it travels in the header X-Variant, got 'é'",
            id="variant that no header can name",
        ),
        pytest.param(
            with_model(labels=["a", 1]),
            "args.models[0].labels: every label must be text, got 1; write it in quotes",
            id="label that is a number",
        ),
        pytest.param(
            with_model(labels={"y": 5}),
            "args.models[0].labels: y: must be a list or the name of a file, got 5",
            id="no labels of an output",
        ),
        pytest.param(
            with_model(format="NCWH"),
            "args.models[0].format: must be NCHW or NHWC, or a mapping from inputs to these, got 'NCWH'",
            id="misspelt format",
        ),
        pytest.param(
            with_model(task="image-classification", format="NCHW"),
            "args.models[0].format: is for models of task tensors; a model of pictures has processor.layout",
            id="format of a model of pictures",
        ),
        pytest.param(
            {"models": [model(), model()]},
            "args.models[1].name: 'digits' is also the name of models[0]",
            id="name twice",
        ),
        pytest.param(
            with_model(variants=[{"name": "int8", "path": "a"}, {"name": "int8", "path": "b"}]),
            "args.models[0].variants[1].name: 'int8' is used twice",
            id="variant twice",
        ),
        pytest.param(with_model(path=""), "args.models[0].path: must have 1 or more characters, got ''", id="empty"),
        pytest.param(with_model(path=5), "args.models[0].path: must be text, got 5", id="number for text"),
        pytest.param(
            with_model(batching={"max_rows": "32"}),
            "args.models[0].batching.max_rows: must be 'auto', got '32'; or must be a whole number, got '32'",
            id="text for a number",
        ),
        pytest.param(
            with_model(batching={"max_rows": True}),
            "args.models[0].batching.max_rows: must be 'auto', got True; or must be a whole number, got True",
            id="switch for a number",
        ),
        pytest.param(
            with_model(batching={"max_rows": 1.5}),
            "args.models[0].batching.max_rows: must be 'auto', got 1.5; or must be a whole number, got 1.5",
            id="fraction for a whole number",
        ),
        pytest.param(
            with_model(batching={"max_rows": 0}),
            "args.models[0].batching.max_rows: must be 'auto', got 0; or must be at least 1, got 0",
            id="zero",
        ),
        pytest.param(
            with_model(batching={"window": 17}), "args.models[0].batching.window: must be at most 16, got 17", id="much"
        ),
        pytest.param(
            with_model(batching={"slo_ms": 0}),
            "args.models[0].batching.slo_ms: must be more than 0, got 0",
            id="no time",
        ),
        pytest.param(
            with_model(batching={"slo_ms": float("nan")}),
            "args.models[0].batching.slo_ms: must be a finite number, got nan",
            id="not a number",
        ),
        pytest.param(
            with_model(batching={"policy": "egaer"}),
            "args.models[0].batching.policy: must be 'auto' or 'eager', got 'egaer'",
            id="unknown choice",
        ),
        pytest.param(
            with_model(resources={"gpu_memory": "much", "gpus": 0.5}),
            "args.models[0].resources.gpu_memory: must be a size such as 32MiB, 2GiB or a number of bytes, got 'much'",
            id="no size",
        ),
        pytest.param(
            with_model(resources={"device": "cuda"}),
            "args.models[0].resources.gpus: must be more than 0 with device: cuda, e.g. 0.25",
            id="cuda without a share",
        ),
        pytest.param(
            with_model(resources={"device": "cpu", "gpus": 0.5}),
            "args.models[0].resources.gpus: must be 0 with device: cpu, got 0.5",
            id="share without cuda",
        ),
        pytest.param(
            with_model(resources={"gpu_memory": "1GiB"}),
            "args.models[0].resources.gpu_memory: limits nothing while gpus is 0; set gpus, or leave gpu_memory out",
            id="limit without a share",
        ),
        pytest.param(
            with_model(resources={"gpus": 2}), "args.models[0].resources.gpus: must be at most 1, got 2", id="two GPUs"
        ),
        pytest.param(
            with_model(autoscaling={"min_replicas": 3, "max_replicas": 2}),
            "args.models[0].autoscaling.max_replicas: 2 is less than min_replicas 3",
            id="most below fewest",
        ),
        pytest.param(
            with_model(autoscaling={"max_replicas": 2, "initial_replicas": 3}),
            "args.models[0].autoscaling.initial_replicas: must be from 1 to 2 (min and max), got 3",
            id="start outside",
        ),
        pytest.param(
            with_model(autoscaling={"look_back_period_s": 0.5}),
            "args.models[0].autoscaling.look_back_period_s: 0.5 is less than metrics_interval_s 1",
            id="short look back",
        ),
        pytest.param(
            with_model() | {"classes": {"low": {"overflow": "demote"}}},
            "args.classes.low.overflow: must be 'reject': there is no class below low",
            id="demotion out of low",
        ),
        pytest.param(
            with_model() | {"classes": {"normal": {"min_share": 0.5}, "low": {"min_share": 0.5}}},
            "args.classes.low.min_share: the classes' shares must sum to less than 1,"
            " got 0 high + 0.5 normal + 0.5 low",
            id="shares of everything",
        ),
        pytest.param(
            with_model() | {"classes": {"low": {"protect": 0.9}}},
            "args.classes.low.protect: must be 0: only class high can be protected",
            id="protected low",
        ),
        pytest.param(
            with_model() | {"classes": {"high": {"queue_bytes": "1MiB"}}},
            "args.classes.high.queue_bytes: 1.0MiB cannot hold one body of router.limits.max_body 32.0MiB",
            id="queue smaller than a body",
        ),
        pytest.param(
            with_model() | {"classes": {"high": 5}}, "args.classes.high: must be a mapping, got 5", id="class"
        ),
    ],
)
def test_a_fault_is_one_line_with_its_place(args: Any, expected: str) -> None:
    """Every kind of fault is one readable line that names the place, what is wrong and the nearest right thing."""
    assert problems(args) == (expected,)


def test_faults_are_reported_together() -> None:
    """A user repairs all faults at once: one parse reports them all, in the order of the file."""
    found = problems({"router": {"replicas": 0}, "models": [model(batchng={}), model(resources={"threads": "many"})]})
    assert found == (
        "args.router.replicas: must be 'auto', got 0; or must be at least 1, got 0",
        "args.models[0].batchng: unknown key; did you mean batching?",
        "args.models[1].resources.threads: must be 'auto', got 'many'; or must be a whole number, got 'many'",
    )


def test_long_values_are_cut_in_messages() -> None:
    """A message stays one readable line whatever was written."""
    assert problems(with_model(batching="x" * 500)) == (
        f"args.models[0].batching: must be a mapping, got '{'x' * 56}...",
    )


def test_a_class_keeps_the_defaults_that_are_not_given() -> None:
    """Changing one key of a class leaves the others of that class alone."""
    settings = parse_args(with_model() | {"classes": {"high": {"queue": 100}}}).class_settings()
    assert settings == {
        Priority.HIGH: ClassSettings(100, 256 * MIB, 1.0, "reject", 0.0),
        Priority.NORMAL: ClassSettings(1024, 512 * MIB, 5.0, "reject", 0.05),
        Priority.LOW: ClassSettings(1536, 512 * MIB, 30.0, "reject", 0.05),
    }


def test_values_for_the_scheduler_are_in_its_units() -> None:
    """Milliseconds become seconds and sizes become bytes."""
    args = parse_args(
        {
            "router": {"limits": {"max_bytes": "2GiB", "high_headroom": 0.25}, "network_ms": 4},
            "models": [model(batching={"policy": "eager", "max_rows": 8, "slo_ms": 50, "window": 3})],
        }
    )
    assert args.model_scheduling() == {
        "digits": ModelScheduling("digits", 8, 0.05, 3, "eager", breaker=BreakerSettings())
    }
    assert args.process_limits() == ProcessLimits(2 * 1024**3, 0.25, 0.004)


def test_variants_share_the_gpu_memory() -> None:
    """The sessions of one replica together stay within the limit."""
    resources = {"device": "cuda", "gpus": 0.5, "gpu_memory": "2GiB", "threads": 3}
    args = parse_args(with_model(resources=resources, variants=[{"name": "int8", "path": "models/int8"}]))
    build = build_settings(args.models[0], Path("model.onnx"), gpu_available=True)
    settings = onnx_settings(build)
    assert settings == OnnxSettings(
        "digits",
        Path("model.onnx"),
        "cuda",
        True,
        1024**3,
        intra_op_threads=3,
    )


def test_onnx_has_no_options() -> None:
    """The message names the execution providers."""
    (config,) = parse_args(with_model(resources=WITH_GPU, backend_options={"tensorrt": True})).models
    with pytest.raises(ConfigError) as caught:
        read_options(config, ONNX)
    (problem,) = caught.value.problems
    assert problem == (
        "model 'digits': backend_options.tensorrt: unknown key; onnx has none, and its execution providers are"
        " CPUExecutionProvider and CUDAExecutionProvider: resources.device chooses one"
    )


def test_a_processor_has_the_options_of_its_task() -> None:
    """The options become the typed ones of the task; a task without options has the defaults."""
    args = parse_args(
        {
            "models": [
                model(name="a", task="image-classification", processor={"size": 28}),
                model(name="b", task="image-classification"),
                model(name="c"),
            ]
        }
    )
    assert [None if m.processor is None else m.processor.model_dump(exclude_unset=True) for m in args.models] == [
        {"size": 28},
        {},
        None,
    ]


def test_the_target_follows_the_batch_size() -> None:
    """Without a target of its own a replica aims for one batch running and one waiting; with `auto` for none."""
    scaling: tuple[dict[str, int], ...] = (
        {"max_replicas": 3},
        {"target_queue": 5},
        {"max_replicas": 3, "target_queue": 5},
        {},
    )
    args = parse_args({"models": [model(name=f"m{i}", autoscaling=each) for i, each in enumerate(scaling)]})
    assert [m.target_rows for m in args.models] == [64, 5, 5, 10**6]


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 2),
        ({"autoscaling": {"min_replicas": 0}}, 2),
        ({"autoscaling": {"min_replicas": 3}}, 3),
        ({"autoscaling": {"initial_replicas": 4}}, 4),
        ({"autoscaling": {"max_replicas": 1}}, 1),
        ({"autoscaling": {"max_replicas": 5}}, 5),
        ({"resources": {"gpus": 0.25}}, 1),
        ({"backend": "python"}, 1),
        ({"backend": "python", "autoscaling": {"min_replicas": 2}}, 2),
        ({"task": "sorting", "processor": {"class": "mine:Sorting"}}, 1),
    ],
)
def test_a_second_process_is_the_default_where_it_can_help(settings: dict[str, Any], most: int) -> None:
    """On a GPU it would take memory of the device, and a Python model may have a state."""
    (found,) = parse_args({"models": [model(**settings)]}).models
    assert found.most_replicas == most


def test_every_key_is_described() -> None:
    """Editors show a description for every key of ours."""
    schema = AppArgs.model_json_schema()
    undescribed = [
        f"{name}.{key}"
        for name, section in {"AppArgs": schema, **schema["$defs"]}.items()
        for key, part in section.get("properties", {}).items()
        if not part.get("description")
    ]
    assert undescribed == []


@pytest.mark.parametrize(
    ("router", "fault"),
    [
        ({}, "args.router.tls: needs router.http.port or router.grpc.port: it is for the routers' own ports"),
        (
            {"grpc": {"port": 9100}, "tls": {"minimum_version": "1.3"}},
            (
                "args.router.tls.minimum_version: must be '1.2' with router.grpc.port:"
                " gRPC's library speaks 1.2 and 1.3, whatever is said here"
            ),
        ),
    ],
)
def test_tls_is_for_the_routers_own_ports(router: dict[str, Any], fault: str) -> None:
    """And promises nothing that a port cannot keep."""
    tls = {"certificate": "c.pem", "key": "k.pem"} | router.get("tls", {})
    with pytest.raises(ConfigError) as caught:
        parse_args({"models": [{"name": "tiny", "path": "models/tiny"}], "router": router | {"tls": tls}})
    assert caught.value.problems == (fault,)


def test_the_request_log_s_folder_starts_where_models_do() -> None:
    """Not where a router's process happens to run; none is Ray Serve's."""
    places = [
        parse_args({"models": [{"name": "tiny", "path": "models/tiny"}], "logging": logging}).logging.place(
            {"SERVE_APP_HOME": "/srv/app"}
        )
        for logging in ({"folder": "logs"}, {"folder": "/var/log"}, {})
    ]
    assert places == [Path("/srv/app/logs"), Path("/var/log"), None]


def test_certificates_that_are_not_there_are_told_before_the_start() -> None:
    """With the place in the configuration, from the folder that relative paths start from."""
    router = {"http": {"port": 8100}, "tls": {"certificate": "c.pem", "key": "k.pem"}}
    args = parse_args({"models": [{"name": "tiny", "path": "models/tiny"}], "router": router})
    assert tls_problems(args.router, {"SERVE_APP_HOME": "/nowhere"}) == (
        "args.router.tls: /nowhere/c.pem: cannot be read: No such file or directory",
        "args.router.tls: /nowhere/k.pem: cannot be read: No such file or directory",
    )
