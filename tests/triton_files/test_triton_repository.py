"""A whole repository: which folders are models, what they share, and what is told of them."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import Any

import onnx_models
import pytest
from triton_repositories import SUM_DIFF, add_model

from serve_app.backends.pytorch.kind import TORCH_SCRIPT
from serve_app.backends.registry import BACKENDS
from serve_app.composition import describe_models, read_args
from serve_app.config.args import AppArgs, parse_args
from serve_app.config.repository import RepositoryConfig
from serve_app.errors import ConfigError
from serve_app.triton.repository import read_repository

LEVELS = "dynamic_batching {{ priority_levels: {} default_priority_level: {} }}"
POLICY = "dynamic_batching {{ default_queue_policy {{ {} }} }}"


@pytest.fixture(autouse=True)
def only_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind of backend, so that messages name what a test knows, whatever others there are."""
    for name in set(BACKENDS) - {"onnx"}:
        monkeypatch.delitem(BACKENDS, name)


def read(folder: Path, **keys: Any) -> AppArgs:
    """A configuration with a repository."""
    return read_args({"repository": str(folder), **keys})


def told(folder: Path, **keys: Any) -> list[str]:
    """What is told of it, without the folder."""
    notes = read_repository(str(folder), **keys).notes
    return [note.removeprefix(f"{folder}/") for note in notes]


def faults(given: Any) -> tuple[str, ...]:
    """What is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        describe_models(read_args(given))
    return caught.value.problems


@pytest.mark.parametrize("name", ["../../../secret.onnx", "/etc/passwd", "..", "sub/../../x.onnx"])
def test_no_file_outside_a_version_is_read(tmp_path: Path, name: str) -> None:
    """Told with its place, before the file is opened."""
    onnx_models.make(tmp_path / "secret.onnx", "add_one")
    add_model(tmp_path / "models", "m", SUM_DIFF + f'default_model_filename: "{name}"')
    (line,) = faults({"repository": str(tmp_path / "models")})
    assert line.endswith(f"default_model_filename: '{name}' is outside the folder of a version")


def test_links_are_followed(tmp_path: Path) -> None:
    """As in Triton: volumes of Kubernetes are made of them. One that leads nowhere is no folder."""
    add_model(tmp_path / "elsewhere", "m")
    (tmp_path / "models").mkdir()
    for name, target in (("linked", tmp_path / "elsewhere" / "m"), ("loop", "loop"), ("dangling", "nowhere")):
        (tmp_path / "models" / name).symlink_to(target)
    assert [model.name for model in read(tmp_path / "models").models] == ["linked"]


def test_each_folder_is_a_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without `config.pbtxt`, too; what is told of them stands in the log; files and hidden folders are left out."""
    add_model(tmp_path, "plain")
    add_model(tmp_path, "told", SUM_DIFF + 'runtime: "x"')
    onnx_models.make(tmp_path / "flat" / "model.onnx", "add_one")
    (tmp_path / ".git").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.md").write_text("models")
    with caplog.at_level(logging.WARNING, "serve_app.composition.arguments"):
        args = read(tmp_path)
    assert list(describe_models(args)) == ["flat", "plain", "told"]
    assert caplog.messages == [
        (
            f"{tmp_path}/empty: holds no <version>/model.onnx, no model.onnx and no other file *.onnx:"
            " model 'empty' is not served"
        ),
        f"{tmp_path}/told/config.pbtxt:11:1: runtime: has no counterpart, and counts for nothing",
    ]


def test_paths_start_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of models."""
    add_model(tmp_path / "models", "m")
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    (model,) = read_args({"repository": "models/"}).models
    assert (model.name, model.path) == ("m", "models/m")


def test_an_entry_of_models_counts_in_place_of_a_folder(tmp_path: Path) -> None:
    """Even of one that is broken."""
    add_model(tmp_path, "a", "broken {")
    add_model(tmp_path, "b")
    by_hand = {"name": "a", "path": str(tmp_path / "a"), "batching": {"max_rows": 3}}
    args = read(tmp_path, models=[by_hand])
    assert [(model.name, model.batching.configured_rows) for model in args.models] == [("a", 3), ("b", 32)]
    assert told(tmp_path, given={"models": [by_hand]}) == [
        f"{tmp_path}/a: models has an entry 'a', which counts in place of the folder".removeprefix(f"{tmp_path}/")
    ]


def test_replicas_share_a_gpu(tmp_path: Path) -> None:
    """One GPU has room for what it has in Triton, whatever runs on the CPU beside it."""
    add_model(tmp_path, "a", SUM_DIFF + "instance_group { kind: KIND_GPU count: 2 }")
    add_model(tmp_path, "b", SUM_DIFF + "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }")
    add_model(tmp_path, "c", SUM_DIFF + "instance_group { kind: KIND_CPU count: 7 }")
    models = {model.name: model for model in read(tmp_path).models}
    assert {name: (model.resources.device, model.resources.gpus) for name, model in models.items()} == {
        "a": ("cuda", 0.3333),
        "b": ("cuda", 0.3333),
        "c": ("cpu", 0.0),
    }
    assert [model.autoscaling.max_replicas for model in models.values()] == [2, 2, 7]


@pytest.mark.parametrize(
    ("count", "default", "classes"),
    [
        (1, 1, "nll"),
        (2, 1, "nll"),
        (2, 2, "hnl"),
        (3, 2, "hnl"),
        (5, 3, "hhnll"),
        (4, 4, "hhhnl"),
    ],
)
def test_priority_levels_are_classes(tmp_path: Path, count: int, default: int, classes: str) -> None:
    """The default level is `normal`; what is more urgent is `high`, what is less is `low`."""
    add_model(tmp_path, "m", SUM_DIFF + LEVELS.format(count, default))
    args = read(tmp_path)
    levels = args.classes.levels()
    assert "".join(str(levels.of_number(number + 1).label)[0] for number in range(len(classes))) == classes  # type: ignore[union-attr]
    assert (levels.default, told(tmp_path)) == (default, [])


def test_classes_are_shared(tmp_path: Path) -> None:
    """What all models say alike is set; what they do not is told; what the configuration says counts."""
    both = "default_timeout_microseconds: 250000 allow_timeout_override: true max_queue_size: 8 timeout_action: REJECT"
    add_model(tmp_path, "a", SUM_DIFF + POLICY.format(both))
    add_model(tmp_path, "b", SUM_DIFF + POLICY.format(both))
    classes = read(tmp_path).classes
    assert [(each.timeout_ms, each.queue) for each in classes.by_priority().values()] == [(250.0, 16)] * 3
    assert told(tmp_path) == []
    args = read(tmp_path, classes={"high": {"timeout_ms": 100}, "low": {"queue": 5}})
    assert [(each.timeout_ms, each.queue) for each in args.classes.by_priority().values()] == [
        (100.0, 16),
        (250.0, 16),
        (250.0, 5),
    ]
    assert told(tmp_path, given={"classes": {"high": {"timeout_ms": 100}}}) == [
        (
            f"{name}/config.pbtxt:11:43: dynamic_batching.default_queue_policy.default_timeout_microseconds:"
            " classes.high.timeout_ms of the configuration counts"
        )
        for name in "ab"
    ]
    add_model(tmp_path, "b", SUM_DIFF + POLICY.format("default_timeout_microseconds: 1000"))
    place, why = "dynamic_batching.default_queue_policy", "a class is shared by all models, and"
    queue = f"{place}.max_queue_size: {why} not all of the repository have this: set queue under classes"
    differ = "those of the repository differ in it: set timeout_ms under classes"
    timeout = f"{place}.default_timeout_microseconds: {why} {differ}"
    assert [line.partition(": ")[2] for line in told(tmp_path)] == [queue, timeout, timeout]


def test_levels_that_differ_are_told(tmp_path: Path) -> None:
    """And those that the configuration names otherwise."""
    add_model(tmp_path, "a", SUM_DIFF + LEVELS.format(3, 2))
    add_model(tmp_path, "b", SUM_DIFF + LEVELS.format(3, 3))
    place = "config.pbtxt:11:39: dynamic_batching.default_priority_level"
    why = "models of the repository have other default levels, and all share classes.priorities: 2 is normal"
    assert told(tmp_path) == [f"{name}/{place}: {why}" for name in "ab"]
    assert read(tmp_path).classes.priorities == {}
    given = {"priorities": {3: "normal"}}
    assert told(tmp_path, given={"classes": given}) == [
        f"{name}/{place}: classes.priorities of the configuration counts" for name in "ab"
    ]


@pytest.mark.parametrize(
    ("policy", "lines"),
    [
        (
            "timeout_action: DELAY default_timeout_microseconds: 5",
            [
                "timeout_action: a request whose deadline has passed is always refused",
                "default_timeout_microseconds: counts for nothing, since it refuses no request there",
            ],
        ),
        (
            "default_timeout_microseconds: 0 allow_timeout_override: false max_queue_size: 0",
            [
                "default_timeout_microseconds: every request has a deadline: that of its class, timeout_ms",
                "allow_timeout_override: a request may always name its own deadline",
                "max_queue_size: every queue is bounded: the class's queue counts",
            ],
        ),
        (
            "default_timeout_microseconds: 90000000000",
            ["default_timeout_microseconds: is more than a day: the class's timeout_ms counts"],
        ),
    ],
)
def test_policies_that_are_followed_otherwise(tmp_path: Path, policy: str, lines: list[str]) -> None:
    """Each is told."""
    add_model(tmp_path, "m", SUM_DIFF + POLICY.format(policy))
    found = [line.partition("default_queue_policy.")[2] for line in told(tmp_path)]
    assert found == lines
    assert read(tmp_path).classes == parse_args({"models": [{"name": "m", "path": "m"}]}).classes


def test_policies_of_levels(tmp_path: Path) -> None:
    """Levels that are one class here: the most urgent one counts. The default policy is that of the other classes."""
    text = """
dynamic_batching {
  priority_levels: 4 default_priority_level: 3
  priority_queue_policy { key: 1 value { default_timeout_microseconds: 1000 } }
  priority_queue_policy { key: 2 value { default_timeout_microseconds: 2000 } }
  priority_queue_policy { key: 9 value { max_queue_size: 1 } }
  default_queue_policy { default_timeout_microseconds: 9000 }
}"""
    add_model(tmp_path, "m", SUM_DIFF + text)
    assert [each.timeout_ms for each in read(tmp_path).classes.by_priority().values()] == [1.0, 9.0, 9.0]
    assert [line.partition("priority_queue_policy")[2] for line in told(tmp_path)] == [
        '["2"].default_timeout_microseconds: a more urgent level of class high has 1, which counts',
        '["9"]: counts for nothing: it is of no priority level',
    ]


def test_a_default_policy_of_no_class_is_told(tmp_path: Path) -> None:
    """Where levels of every class have their own."""
    listed = "".join(f"priority_queue_policy {{ key: {level} value {{ max_queue_size: 5 }} }}" for level in (1, 2, 3))
    text = f"dynamic_batching {{ priority_levels: 4 default_priority_level: 2 {listed} default_queue_policy {{}} }}"
    add_model(tmp_path, "m", SUM_DIFF + text)
    assert [line.partition("dynamic_batching.")[2] for line in told(tmp_path)] == [
        "default_queue_policy: counts for nothing: levels of every class have a policy of their own"
    ]
    assert [each.queue for each in read(tmp_path).classes.by_priority().values()] == [5, 5, 5]


def test_faults_of_the_place(tmp_path: Path) -> None:
    """One line each."""
    assert faults({"repository": "nowhere"})[0].startswith(
        "args.repository.path: nowhere: is no folder of this machine (looked for "
    )
    assert faults({"repository": "s3://bucket/models"})[0].startswith("args.repository.path: s3://bucket/models: is no")
    assert "args.repository.pth: unknown key; did you mean path?" in faults({"repository": {"pth": "x"}})
    assert faults({"repository": str(tmp_path)}) == ("args.models: needs at least one model",)
    with pytest.raises(ConfigError) as caught:
        parse_args({"repository": "models", "models": [{"name": "a", "path": "a"}]})
    assert caught.value.problems == ("args.repository: is read by serve_app.composition.read_args only",)


def test_how_models_are_loaded_stays(tmp_path: Path) -> None:
    """What else the section says counts, with a path or without one."""
    add_model(tmp_path, "m")
    both = read_args({"repository": {"path": str(tmp_path), "strict": True, "watch": True, "interval_s": 2}})
    assert ([model.name for model in both.models], both.repository) == (
        ["m"],
        RepositoryConfig(watch=True, interval_s=2.0),
    )
    one = {"name": "a", "path": "a"}
    alone = read_args({"repository": {"watch": True}, "models": [one]})
    assert ([model.name for model in alone.models], alone.repository.watch) == (["a"], True)
    assert faults({"repository": {"watch": True}}) == ("args.models: required, but missing",)
    assert faults({"repository": {"path": str(tmp_path), "interval_s": -1}, "models": [one]}) == (
        "args.repository.interval_s: must be more than 0, got -1",
    )


def test_faults_of_models_name_them(tmp_path: Path) -> None:
    """By file, or by name: their numbers stand in no file."""
    add_model(tmp_path, " blank")
    assert faults({"repository": str(tmp_path)}) == (
        f"{tmp_path}/ blank: name: must not begin or end with a blank, got ' blank'",
    )


def test_a_model_without_its_file_is_an_error(tmp_path: Path) -> None:
    """Of a folder that says by `config.pbtxt` that it is a model; so is a file that is no text."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.pbtxt").write_text('name: "a"')
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.pbtxt").write_bytes(b"\xff")
    first, second = faults({"repository": str(tmp_path)})
    assert first.startswith(f"{tmp_path}/a: holds no <version>/model.onnx")
    assert second.startswith(f"{tmp_path}/b/config.pbtxt: cannot be read: 'utf-8' codec can't decode byte 0xff")


def test_a_torchscript_file_has_the_tensors_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file does not say what they are. Triton's names are those of clients."""
    monkeypatch.setitem(BACKENDS, TORCH_SCRIPT.name, TORCH_SCRIPT)
    (tmp_path / "m" / "1").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "m" / "1" / "model.pt", "w") as archive:
        archive.writestr("m/constants.pkl", b"")
        archive.writestr("m/code/__torch__.py", b"")
    (tmp_path / "m" / "config.pbtxt").write_text(
        'platform: "pytorch_libtorch"\nmax_batch_size: 4\n'
        'input { name: "INPUT__0" data_type: TYPE_INT64 dims: [ -1 ] }\n'
        'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2, 3 ] }\n',
        "utf-8",
    )
    (model,) = read_repository(str(tmp_path)).models
    assert model.keys is not None
    assert model.keys["backend"] == "torchscript"
    assert model.keys["backend_options"] == {
        "inputs": {"INPUT__0": {"dtype": "int64", "shape": [-1, -1]}},
        "outputs": {"OUTPUT__0": {"dtype": "float32", "shape": [-1, 2, 3]}},
    }
    assert not model.notes
