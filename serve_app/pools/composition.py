"""What a configuration makes of pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from serve_app.composition.locate import ModelLocation
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig
from serve_app.domain.service import ModelInfo
from serve_app.pools.config import pools_with_members
from serve_app.pools.hosting import member_problems
from serve_app.pools.members import expand_pools as expand
from serve_app.pools.orders import RoutedPool
from serve_app.pools.policy.device import PoolDevice
from serve_app.pools.policy.settings import Pool
from serve_app.pools.router import PoolsPart
from serve_app.router.part import MakePart
from serve_app.scheduling.placement.devices import Device

__all__ = ["devices", "expand", "model_problems", "router_part"]


def model_problems(args: AppArgs, model: ModelConfig, locations: Mapping[str, ModelLocation]) -> tuple[str, ...]:
    """Why a model cannot be a member of its pool, one line each."""
    pool = next((pool for pool in args.pools if pool.name == model.pool), None)
    return () if pool is None else member_problems(model, pool, locations)


def devices(args: AppArgs) -> Iterator[Callable[[], Device]]:
    """What makes the scheduler's device of each pool."""
    return (partial(PoolDevice, pool, args.class_settings()) for pool, _ in _pools(args))


def router_part(args: AppArgs, infos: Mapping[str, ModelInfo]) -> MakePart | None:  # noqa: ARG001 - of all wings
    """Make the part of a router that has the pools' hosts; ``None``: there are no pools."""
    pools = [RoutedPool(pool, load_timeout_s) for pool, load_timeout_s in _pools(args)]
    return partial(PoolsPart, pools) if pools else None


def _pools(args: AppArgs) -> Iterator[tuple[Pool, float]]:
    """The scheduler's settings of each pool, and how long a load may take, seconds."""
    for pool, members in pools_with_members(args):
        yield pool.scheduling([model.name for model in members]), pool.load_timeout_s
