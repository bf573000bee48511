"""A model in several versions becomes a model for each, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_models
import pytest

from serve_app.composition import identities, model_info, read_models, router_settings, with_versions
from serve_app.composition.locate import missing_models
from serve_app.composition.model import find_files
from serve_app.config.args import AppArgs, parse_args
from serve_app.errors import ConfigError
from serve_app.versions.policy import Shadow, Tolerance, Traffic


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in four versions, an int8 build of two of them, and a flat one."""
    for version in (1, 3, 5, 12):
        onnx_models.adder(tmp_path / "m" / str(version) / "model.onnx", version)
    for version in (5, 12):
        onnx_models.adder(tmp_path / "light" / str(version) / "model.onnx", version)
    onnx_models.make(tmp_path / "flat" / "model.onnx", "add_one")
    return tmp_path


def config(folder: Path, *others: dict[str, Any], **settings: Any) -> AppArgs:
    """Of model `m`."""
    models = [{"name": "m", "path": str(folder / "m"), **settings}, *others]
    return parse_args({"models": models})


def problems(args: AppArgs) -> tuple[str, ...]:
    """Why it cannot be served."""
    with pytest.raises(ConfigError) as caught:
        with_versions(args)
    return caught.value.problems


def test_without_versions_nothing_changes(folder: Path) -> None:
    """The very same configuration."""
    args = config(folder)
    assert with_versions(args) is args
    (described,) = (model_info(args.models[0], args, read_models(args)["m"]),)
    assert (described.name, described.key, described.version, described.versions) == ("m", "", "12", ("12",))


@pytest.mark.parametrize(
    ("versions", "served"),
    [({"latest": 2}, ["5", "12"]), ({"latest": 9}, ["1", "3", "5", "12"]), ([12, 3], ["3", "12"]), ([5], ["5"])],
)
def test_each_version_is_a_model(folder: Path, versions: Any, served: list[str]) -> None:
    """With a name that no other model can have, files of its own and the settings of the model."""
    other = {"name": "other", "path": str(folder / "flat")}
    args = with_versions(config(folder, other, versions=versions, batching={"max_rows": 7}))
    *models, last = args.models
    assert last.name == "other"
    assert [model.name for model in models] == [f"m/{version}" for version in served]
    assert len({model.deployment for model in models}) == len(served)
    builds = read_models(args)
    infos = {model.name: model_info(model, args, builds[model.name]) for model in args.models}
    for version in served:
        info = infos[f"m/{version}"]
        assert (info.name, info.version, info.key, info.max_rows) == ("m", version, f"m/{version}", 7)
    digests = {identities(model, find_files(model))[""] for model in models}
    assert len(digests) == len(served)


def test_routers_know_how_requests_are_spread(folder: Path) -> None:
    """Every version of the model comes with the same table; other models with none."""
    settings = {
        "versions": [3, 5],
        "aliases": {"stable": 3, "candidate": 5},
        "traffic": {3: 9, "candidate": 1},
        "sticky": "key",
        "shadow": {"to": 5, "share": 10, "tolerance": {"y": {"rtol": 0.5}}},
    }
    args = with_versions(config(folder, {"name": "other", "path": str(folder / "flat")}, **settings))
    builds = read_models(args)
    infos = {model.name: model_info(model, args, builds[model.name]) for model in args.models}
    models = router_settings(args, infos, priors={}, identities={}).models
    table = Traffic(
        {"stable": "3", "candidate": "5"},
        {"3": 9.0, "candidate": 1.0},
        "key",
        Shadow("5", 10.0, {"y": Tolerance(0.5, 1e-5)}),
    )
    assert [(model.name, model.traffic) for model in models] == [("m/3", table), ("m/5", table), ("other", None)]


def test_variants_follow(folder: Path) -> None:
    """A variant of a version has the same number, unless it is said."""
    variants = [
        {"name": "light", "path": str(folder / "light")},
        {"name": "old", "path": str(folder / "m"), "version": 1},
    ]
    args = with_versions(config(folder, versions={"latest": 2}, variants=variants))
    found = {model.name: {name: at.version for name, at in find_files(model).items()} for model in args.models[:2]}
    assert found == {
        "m/5": {"": "5", "light": "5", "old": "1"},
        "m/12": {"": "12", "light": "12", "old": "1"},
    }


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"versions": [3, 4, 7]}, "has no version 4, 7; there is 1, 3, 5, 12"),
        (
            {"versions": {"latest": 2}, "aliases": {"stable": 3}},
            "aliases.stable: there is no version '3'; versions: 5, 12",
        ),
        ({"versions": {"latest": 2}, "shadow": {"to": "rc"}}, "shadow.to: 'rc' is no version and no alias"),
    ],
)
def test_what_is_not_there_is_told(folder: Path, settings: Any, told: str) -> None:
    """With the model's name."""
    (problem,) = problems(config(folder, **settings))
    assert problem.startswith("model 'm': ")
    assert told in problem


def test_a_model_without_versions_cannot_have_several(folder: Path) -> None:
    """As `version` is refused for it."""
    args = parse_args({"models": [{"name": "flat", "path": str(folder / "flat"), "versions": {"latest": 2}}]})
    (problem,) = problems(args)
    assert problem.endswith("flat: holds no folders of versions; leave versions out")


def test_missing_versions_are_found_without_reading_models(folder: Path) -> None:
    """One line each, with the place."""
    light = {"name": "light", "path": str(folder / "light")}
    args = config(folder, versions=[3, 7], variants=[light])
    told = missing_models(args.models)
    assert [line.partition(": ")[0] for line in told] == [
        "args.models[0].path",
        "args.models[0].variants[0].path",
        "args.models[0].variants[0].path",
    ]


def test_versions_count_in_what_a_router_holds(folder: Path) -> None:
    """Each has queues and rows in flight of its own."""
    one = config(folder).budget().in_flight["m"]
    assert config(folder, versions=[3, 5, 12]).budget().in_flight["m"] == 3 * one
    assert sum(with_versions(config(folder, versions=[3, 5, 12])).budget().in_flight.values()) == 3 * one
