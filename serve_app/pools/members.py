"""Pools of models: every folder under a pool's pattern becomes a model of the configuration."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Final

from serve_app.composition.model import find_files, memory_of
from serve_app.config.args import AppArgs
from serve_app.config.files import home
from serve_app.config.model import ModelConfig
from serve_app.config.names import checked_model_name
from serve_app.config.problems import nearest, short_repr
from serve_app.config.values import size
from serve_app.errors import ConfigError
from serve_app.pools.config import PoolConfig, pools_with_members

_TOLD: Final = 10
"""Most members of a pool named in a message about a common fault."""


def expand_pools(config: AppArgs, environ: Mapping[str, str] | None = None) -> AppArgs:
    """Add every member of a pool to the models of the configuration, after the existing ones, by name.

    Without `pools`, the configuration is unchanged.

    Raises:
        ConfigError: With one line per fault: a pattern finds nothing, or finds something that is no model, is called as
            another, lies elsewhere, or takes more memory than a host of the pool has.
    """
    if not config.pools:
        return config
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    models = {model.name: model for model in config.models}
    for number, (pool, by_hand) in enumerate(pools_with_members(config)):
        place = f"args.pools[{number}]"
        found: dict[str, str] = {}
        try:
            found = _folders(pool.path, environ) if pool.path else {}
        except ConfigError as error:
            problems += (f"{place}.path: {problem}" for problem in error.problems)
        faults = [f"{place}.path: {fault}" for fault in _name_faults(found, pool, models)]
        members = pool.models(found)
        problems += faults or _memory_faults(place, pool, [*by_hand, *members], environ)
        problems += (f"{place}.members.{fault}" for fault in _unknown_members(pool, found, models))
        models |= {model.name: model for model in members}
    if problems:
        raise ConfigError(tuple(problems))
    return config.model_copy(update={"models": tuple(models.values())})


def _folders(pattern: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The folders of a pattern: sorted names, and paths as a configuration names them.

    Raises:
        ConfigError: There are none, two of one name, or one that lies elsewhere.
    """
    base = home(environ)
    parts = PurePath(pattern).parts
    above = PurePath(*takewhile(lambda part: not glob.has_magic(part), parts))
    root = (base / above).resolve()
    found: dict[str, str] = {}
    problems: list[str] = []
    # Like a shell's, the wildcard matches no leading dot: such folders are being created or removed.
    paths = glob.glob(pattern, root_dir=base)  # noqa: PTH207 - of pathlib, it does
    for path in sorted(paths, key=lambda path: (PurePath(path).name, path)):
        place, name = base / path, PurePath(path).name
        if not place.is_dir():
            continue
        if not place.resolve().is_relative_to(root):
            problems.append(
                f"{path} is a link to {place.resolve()}, outside of {root}; copy the folder, or name it in models,"
                " with pool"
            )
        elif name in found:
            problems.append(f"{found[name]} and {path} are both called {short_repr(name)}; rename one of them")
        else:
            found[name] = path
    if problems:
        raise ConfigError(_few(problems))
    if not found:
        there = f"{root} is there" if root.is_dir() else f"there is no folder {root}"
        raise ConfigError((f"{pattern} finds no folder, and {there}; write a pattern whose folders are models",))
    return found


def _name_faults(found: Mapping[str, str], pool: PoolConfig, models: Mapping[str, ModelConfig]) -> Sequence[str]:
    faults = []
    for name, path in found.items():
        try:
            checked_model_name(name)
        except ValueError as error:
            faults.append(f"the folder {path} cannot be a model's name: it {error}; rename it")
            continue
        if (other := models.get(name)) is None:
            continue
        if other.pool == pool.name and other.path == path:
            where = "an entry of models as well; leave that out, and write what differs into members of the pool"
        else:
            where = "also the name of " + ("a model" if other.pool is None else f"a member of the pool {other.pool}")
            where += "; rename the folder, or narrow the pattern"
        faults.append(f"{short_repr(name)} ({path}) is {where}")
    return _few(faults)


def _unknown_members(pool: PoolConfig, found: Mapping[str, str], models: Mapping[str, ModelConfig]) -> Iterator[str]:
    for name in pool.members:
        if name not in found:
            guess = nearest(name, found)
            hint = f"did you mean {guess}?" if guess else "members are called as their folders"
            if name in models and models[name].pool == pool.name:
                hint = "it stands in models: write its settings there"
            yield f"{name}: {pool.path or 'the pool'} finds no such folder; {hint}"


def _memory_faults(
    place: str, pool: PoolConfig, members: Sequence[ModelConfig], environ: Mapping[str, str]
) -> Sequence[str]:
    """Members whose files are missing, or that no host could hold. Remote ones are found when they are copied."""
    faults = []
    for model in members:
        if model.remote:
            continue
        try:
            takes = memory_of(find_files(model, environ))
        except ConfigError as error:
            faults += [f"{place}: member {model.name!r}: {problem}" for problem in error.problems]
            continue
        except OSError as error:
            faults.append(f"{place}: member {model.name!r}: {error}")
            continue
        if takes > pool.memory:
            faults.append(
                f"{place}.memory: {size(pool.memory)} is less than member {model.name!r} takes, about {size(takes)}"
                " (twice its files); raise memory, or take the member out"
            )
    return _few(faults)


def _few(problems: Sequence[str]) -> tuple[str, ...]:
    more = len(problems) - _TOLD
    return tuple(problems) if more <= 1 else (*problems[:_TOLD], f"{problems[_TOLD]} (and {more - 1} more like it)")
