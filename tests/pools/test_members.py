"""Pools in a configuration: which folders become members, with which settings, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_models
import pytest

from serve_app.cli.limits import run_limits
from serve_app.composition import describe_models, expand_models
from serve_app.composition.identity import identities
from serve_app.composition.model import find_files, memory_of
from serve_app.config.args import AppArgs, parse_args
from serve_app.config.file import IMPORT_PATH, parse_document
from serve_app.errors import ConfigError
from serve_app.pools.config import pools_with_members
from serve_app.pools.policy.settings import Pool


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three models and a file, in the folder that paths start from."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    for name in ("b", "a", "c"):
        onnx_models.make(tmp_path / "models" / name / "1" / "model.onnx", "add_one")
    (tmp_path / "models" / "README.md").write_text("Models.")
    (tmp_path / "models" / ".copying").mkdir()
    return tmp_path


def pooled(pool: dict[str, Any] | None = None, **args: Any) -> AppArgs:
    """A configuration with one pool."""
    return parse_args({"pools": [{"name": "many", "path": "models/*", "memory": "1MiB", **(pool or {})}], **args})


def faults(pool: dict[str, Any] | None = None, **args: Any) -> tuple[str, ...]:
    """What is wrong with it, once its folders are looked at."""
    with pytest.raises(ConfigError) as caught:
        expand_models(pooled(pool, **args))
    return caught.value.problems


def test_folders_become_models_by_name(home: Path) -> None:
    """Files and hidden folders do not; entries of models come first."""
    args = pooled(
        {
            "defaults": {"batching": {"max_rows": 8, "slo_ms": 50.0}, "health": {"warm_up_s": 1.0}},
            "members": {"b": {"batching": {"slo_ms": 20.0}, "version": 1}},
        },
        models=[{"name": "own", "path": "models/a"}, {"name": "z", "path": "models/c", "pool": "many"}],
    )
    models = {model.name: model for model in expand_models(args).models}
    assert list(models) == ["own", "z", "a", "b", "c"]
    assert [model.pool for model in models.values()] == [None, "many", "many", "many", "many"]
    assert [(model.path, model.batching.configured_rows, model.batching.slo_ms) for model in models.values()][2:] == [
        ("models/a", 8, 50.0),
        ("models/b", 8, 20.0),
        ("models/c", 8, 50.0),
    ]
    assert models["b"].version == 1
    assert models["a"].health.warm_up_s == models["b"].health.warm_up_s == 1.0


def test_a_configuration_without_pools_stays() -> None:
    """It is the very same."""
    args = parse_args({"models": [{"name": "a", "path": "a"}]})
    assert expand_models(args) is args


def test_members_are_as_other_models(home: Path) -> None:
    """They are described, and have the identity that the same files have elsewhere."""
    args = expand_models(pooled(models=[{"name": "own", "path": "models/a"}]))
    assert sorted(describe_models(args)) == ["a", "b", "c", "own"]
    own, member = args.models[0].model_copy(update={"name": "a"}), args.models[1]
    assert identities(own, find_files(own)) == identities(member, find_files(member))


def test_the_scheduler_gets_a_pool(home: Path) -> None:
    """With its members, and what one host holds."""
    ((pool, members),) = pools_with_members(expand_models(pooled({"hosts": 2, "loads": 3})))
    names = [model.name for model in members]
    assert pool.scheduling(names) == Pool("many", ("a", "b", "c"), memory_bytes=1 << 20, loads=3)


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        ({"path": "other/*"}, "args.pools[0].path: other/* finds no folder, and there is no folder {home}/other;"),
        ({"path": "models/*/model.*"}, "args.pools[0].path: models/*/model.* finds no folder, and {home}/models is"),
        ({"members": {"aa": {}}}, "args.pools[0].members.aa: models/* finds no such folder; did you mean a?"),
        ({"members": {"zzz": {}}}, "args.pools[0].members.zzz: models/* finds no such folder; members are called as"),
        ({"path": "models/[!a]"}, None),
    ],
)
def test_patterns_that_find_too_little(home: Path, pool: dict[str, Any], told: str | None) -> None:
    """One line says what there is."""
    if told is None:
        assert [model.name for model in expand_models(pooled(pool)).models] == ["b", "c"]
        return
    (problem,) = faults(pool)
    assert problem.startswith(told.format(home=home))


def test_names_must_be_free(home: Path) -> None:
    """Also of members of other pools, and of folders of another parent."""
    (twice,) = faults(models=[{"name": "a", "path": "models/a", "pool": "many"}])
    assert twice.startswith("args.pools[0].path: 'a' (models/a) is an entry of models as well; leave that out")
    (named,) = faults(models=[{"name": "a", "path": "models/b"}])
    assert named.startswith("args.pools[0].path: 'a' (models/a) is also the name of a model; rename the folder")
    onnx_models.make(home / "more" / "a" / "model.onnx", "add_one")
    (both,) = faults({"path": "mo*/a"})
    assert both.startswith("args.pools[0].path: models/a and more/a are both called 'a'; rename one")
    other = {"name": "other", "path": "more/*", "memory": 1 << 20}
    args = parse_args({"pools": [{"name": "many", "path": "models/*", "memory": "1MiB"}, other]})
    with pytest.raises(ConfigError, match=r"args.pools\[1\].path: 'a' \(more/a\) is also .* of the pool many; rename"):
        expand_models(args)


def test_links_stay_below_the_pattern(home: Path) -> None:
    """One that leads elsewhere is told with where; one to a neighbour is a member of its own."""
    (home / "models" / "d").symlink_to(home / "models" / "a")
    assert [model.name for model in expand_models(pooled()).models] == ["a", "b", "c", "d"]
    onnx_models.make(home / "elsewhere" / "e" / "model.onnx", "add_one")
    (home / "models" / "e").symlink_to(home / "elsewhere" / "e")
    (problem,) = faults()
    assert problem.startswith(f"args.pools[0].path: models/e is a link to {home}/elsewhere/e, outside of {home}/models")


def test_folders_that_cannot_be_names(home: Path) -> None:
    """The rule is told."""
    onnx_models.make(home / "models" / "*" / "model.onnx", "add_one")
    onnx_models.make(home / "models" / " a" / "model.onnx", "add_one")
    blank, star = faults()
    assert blank.startswith("args.pools[0].path: the folder models/ a cannot be a model's name: it must not begin")
    assert star.startswith("args.pools[0].path: the folder models/* cannot be a model's name: it must not be '*'")


def test_members_fit_into_a_host(home: Path) -> None:
    """Both figures are told; and folders without a model. Of many that have a fault, some are named."""
    takes = memory_of(find_files(expand_models(pooled()).models[0]))
    expand_models(pooled({"memory": takes}))
    told = faults({"memory": takes - 1})
    assert told[0].startswith(
        f"args.pools[0].memory: {takes - 1}B is less than member 'a' takes, about {takes}B (twice"
    )
    assert len(told) == 3
    for number in range(20):
        (home / "models" / f"empty-{number:02}").mkdir()
    told = faults()
    assert len(told) == 11
    assert told[0].startswith("args.pools[0]: member 'empty-00': models/empty-00: holds no <version>/model.onnx")
    assert told[-1].endswith("(and 9 more like it)")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("autoscaling", {"max_replicas": 2}),
        ("versions", {"latest": 2}),
        ("traffic", {"stable": 100}),
        ("resources.gpus", 0.5),
        ("resources.cpus", 1.0),
        ("resources.memory_limit", "1GiB"),
        ("health.drain_timeout_s", 1.0),
        ("name", "x"),
        ("path", "x"),
        ("pool", "many"),
        ("profile", "p.json"),
    ],
)
def test_settings_that_a_member_cannot_have(where: str, value: Any) -> None:
    """Refused by name, wherever they stand."""
    section, _, key = where.partition(".")
    settings = {section: {key: value}} if key else {section: value}
    of_one = where in {"name", "path", "pool", "profile"}
    tried: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"defaults": settings}, {}, f"args.pools[0].defaults.{where}: ")
    ]
    if where != "profile":
        tried.append(({"members": {"a": settings}}, {}, f"args.pools[0].members.a.{where}: "))
    if not of_one:
        entry = {"name": "x", "path": "x", "pool": "many", **settings}
        tried.append(({}, {"models": [entry]}, f"args.models[0].{where}: "))
    for pool, args, place in tried:
        with pytest.raises(ConfigError) as caught:
            pooled(pool, **args)
        assert caught.value.problems[0].startswith(place)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"pools": [{"name": "p", "path": "m", "memory": 1}]}, "args.pools[0].path: is one folder; write a pattern"),
        (
            {"pools": [{"name": "p", "path": "s3://b/*", "memory": 1}]},
            "args.pools[0].path: is no pattern of folders of",
        ),
        ({"pools": [{"name": "p", "path": "a/**/b", "memory": 1}]}, "args.pools[0].path: cannot have **"),
        ({"pools": [{"name": "p", "memory": 1}]}, "args.pools[0].path: the pool has no members: set path, or pool at"),
        (
            {"pools": [{"name": "p", "path": "m/*", "memory": 1, "defaults": {"batching": {"max_row": 1}}}]},
            "args.pools[0].defaults.batching.max_row: unknown key; did you mean max_rows?",
        ),
        (
            {"pools": [{"name": "p", "path": "m/*", "memory": 1, "members": {"a": {"labls": []}}}]},
            "args.pools[0].members.a.labls: unknown key; did you mean labels?",
        ),
        (
            {"pools": [{"name": "p", "path": "m/*", "memory": 1}], "router": {"replicas": 2}},
            "args.router.replicas: must be 1 with pools, got 2",
        ),
        (
            {"pools": [{"name": "p", "path": "m/*", "memory": 1}], "models": [{"name": "a", "path": "a", "pool": "q"}]},
            "args.models[0].pool: there is no pool 'q'; there is p",
        ),
    ],
)
def test_faults_of_pools(args: dict[str, Any], told: str) -> None:
    """Each is told at its place."""
    with pytest.raises(ConfigError) as caught:
        parse_args(args)
    assert caught.value.problems[0].startswith(told)
    assert len(caught.value.problems) == 1


def test_budgets_count_hosts_and_not_members(home: Path) -> None:
    """However many members there are: two bundles of each class at each host, and the CPUs of the hosts."""
    pool = {"name": "many", "path": "models/*", "memory": "1MiB", "hosts": 2, "cpus": 1.5}
    application = {"name": "app", "import_path": IMPORT_PATH, "args": {"pools": [pool], "router": {"cpus": 1.0}}}
    file = parse_document({"applications": [application]})
    assert file.args.budget().in_flight == {"many": 2 * 2 * 3 * 32}
    assert expand_models(file.args).budget().in_flight == {"many": 2 * 2 * 3 * 32}
    limits = run_limits(file, {}, files=1 << 20, cores=1)
    assert limits.notes == ("3 processes of replicas and routers share 1 CPUs",)
