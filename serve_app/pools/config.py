"""Settings of pools: many models share a few processes, with memory for some at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, ValidationInfo, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from serve_app.config.batching import BatchingConfig
from serve_app.config.files import is_remote
from serve_app.config.model import HealthConfig, ModelConfig
from serve_app.config.names import checked_model_name, deployment_name
from serve_app.config.problems import Location, hint, short_repr, validation_error
from serve_app.config.values import Cpus, Positive, Seconds, Section, Size
from serve_app.domain.priority import Priority
from serve_app.pools.policy.settings import Pool

if TYPE_CHECKING:
    from serve_app.config.args import AppArgs

_ONE_VERSION: Final = "a member has one version; a model with several stands in models, without pool"
_HOSTS: Final = "hosts of a pool compute on the CPU; a model on a GPU stands in models, without pool"
_OF_HOST: Final = "is the host's: set it at the pool"

NOT_OF_MEMBERS: Final[Mapping[str, str]] = {
    "versions": _ONE_VERSION,
    "aliases": _ONE_VERSION,
    "traffic": _ONE_VERSION,
    "sticky": _ONE_VERSION,
    "shadow": _ONE_VERSION,
    "autoscaling": "a member has no replicas of its own: set hosts at the pool",
    "resources.device": _HOSTS,
    "resources.gpus": _HOSTS,
    "resources.gpu_memory": _HOSTS,
    "resources.cpus": _OF_HOST,
    "resources.memory_limit": "is the host's: set memory at the pool",
    "health.check_period_s": _OF_HOST,
    "health.check_timeout_s": _OF_HOST,
    "health.drain_timeout_s": _OF_HOST,
}
"""Settings of a model that mean nothing for a member of a pool, and what to do instead."""

_SET_BY_POOL: Final[Mapping[str, str]] = {
    "name": "a member is called as its folder",
    "path": "path of the pool says where its members are",
    "pool": "a member is one of the pool that this stands in",
}
"""What besides is no setting in `defaults` and `members`."""

_WILDCARDS: Final = frozenset("*?[")
_PLACEHOLDER: Final = "member"


class _MemberSchema:
    """JSON Schema of `defaults`, and of each of `members`: a model's, without what a member does not have."""

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        model = handler.resolve_ref_schema(handler(ModelConfig.__pydantic_core_schema__))
        refused = {*NOT_OF_MEMBERS, *_SET_BY_POOL}
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: value for key, value in model["properties"].items() if key not in refused},
            "allOf": model.get("allOf", []),
        }


def _check_defaults(given: Mapping[str, Any]) -> Mapping[str, Any]:
    _check_keys(given, {**NOT_OF_MEMBERS, **_SET_BY_POOL, "profile": "is of one model: set it in members"})
    _member(given)
    return given


def _check_own(given: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
    _check_keys(given, {**NOT_OF_MEMBERS, **_SET_BY_POOL})
    if "defaults" in info.data:  # otherwise their faults are reported
        _member(_merged(info.data["defaults"], given))
    return given


Defaults = Annotated[Mapping[str, Any], AfterValidator(_check_defaults), _MemberSchema()]
OwnSettings = Annotated[Mapping[str, Any], AfterValidator(_check_own), _MemberSchema()]


class PoolConfig(Section):
    """Models that share few processes, the hosts of the pool. A host loads and unloads them as requests need them."""

    name: str
    """Its name, for messages, metrics and `/status`; its deployment is called by it, as a model's by the model's."""

    path: str = ""
    """Pattern of the folders of its members, `models/*`: on this machine, relative to `SERVE_APP_HOME`, or absolute.

    Each is a model, called as the folder. Entries of `models` with this `pool` are members as well.
    """

    hosts: Positive = 1
    """Processes. Each has memory of its own, and runs one batch at a time."""

    memory: Size
    """What the loaded members of one host may hold together."""

    loads: Positive = 1
    """Loads at once in one host."""

    load_timeout_s: Seconds = 60.0
    """How long a load may take. If one takes longer, the member is left alone for a while, and the host is replaced
    when `health.stall_timeout_s` is over as well."""

    cpus: Cpus = 0.25
    """CPUs that Ray reserves per host."""

    health: HealthConfig = HealthConfig()
    """How hosts are watched and stopped."""

    defaults: Defaults = Field(default_factory=dict)
    """Settings of its members, as of an entry of `models`."""

    members: Mapping[str, OwnSettings] = Field(default_factory=dict)
    """Settings of single members, by name, on top of `defaults`: a section counts key by key."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_model_name(name)

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if is_remote(path):
            raise ValueError(
                "is no pattern of folders of this machine: copy the models here, or name them in models, with pool"
            )
        if path and not _WILDCARDS & set(path):
            raise ValueError(f"is one folder; write a pattern of folders, e.g. {path.rstrip('/')}/*")
        if "**" in path:
            raise ValueError("cannot have **: the folder above the members is part of the pattern, e.g. models/*/*")
        return path

    @property
    def deployment(self) -> str:
        """Name of its deployment."""
        return deployment_name(self.name)

    def models(self, paths: Mapping[str, str]) -> list[ModelConfig]:
        """Its members as models. Common settings are checked once.

        Args:
            paths: Paths by member.
        """
        common = _member(self.defaults)
        return [
            (common if (own := self.members.get(name)) is None else _member(_merged(self.defaults, own))).model_copy(
                update={"name": name, "path": path, "pool": self.name}
            )
            for name, path in paths.items()
        ]

    def scheduling(self, members: Sequence[str]) -> Pool:
        """The values for the scheduler."""
        return Pool(self.name, tuple(members), memory_bytes=int(self.memory), loads=self.loads)

    def most_rows(self, members: Sequence[ModelConfig]) -> int:
        """Most rows in flight of all members on its hosts.

        Args:
            members: The known ones; `defaults` and `members` count in any case.
        """
        written = (self.defaults, *self.members.values())
        rows = max(*map(_max_rows, written), *(model.batching.configured_rows for model in members), 0)
        return self.hosts * self.scheduling(()).concurrency * len(Priority) * rows


def pools_with_members(args: AppArgs) -> Iterator[tuple[PoolConfig, Sequence[ModelConfig]]]:
    """Each pool, with its members among the models."""
    members: defaultdict[str | None, list[ModelConfig]] = defaultdict(list)
    for model in args.models:
        members[model.pool].append(model)
    return ((pool, members[pool.name]) for pool in args.pools)


def in_flight(args: AppArgs) -> dict[str, int]:
    """Most rows in flight at the hosts of each pool."""
    return {pool.name: pool.most_rows(members) for pool, members in pools_with_members(args)}


def problems(args: AppArgs) -> Iterator[tuple[Location, str]]:
    """Find inconsistencies between pools, models and the router."""
    pools, models, routers = args.pools, args.models, args.router.fewest
    known: dict[str, int] = {}
    names = {model.name for model in models}
    for number, pool in enumerate(pools):
        if pool.name in known:
            yield ("pools", number, "name"), f"{short_repr(pool.name)} is also the name of pools[{known[pool.name]}]"
        elif pool.name in names:
            yield ("pools", number, "name"), f"{short_repr(pool.name)} is also the name of a model"
        known.setdefault(pool.name, number)
        if not pool.path and not any(model.pool == pool.name for model in models):
            yield ("pools", number, "path"), "the pool has no members: set path, or pool at entries of models"
    if pools and routers > 1:
        yield (
            ("router", "replicas"),
            f"must be 1 with pools, got {routers}: one router decides what the hosts of a pool load",
        )
    for number, model in enumerate(models):
        if model.pool is None:
            continue
        if model.pool not in known:
            yield ("models", number, "pool"), f"there is no pool {short_repr(model.pool)}; {hint(model.pool, known)}"
        for where, reason in NOT_OF_MEMBERS.items():
            if _is_set(model, where):
                yield ("models", number, *where.split(".")), reason


def _is_set(section: Any, where: str) -> bool:
    key, _, rest = where.partition(".")
    return key in section.model_fields_set and (not rest or _is_set(getattr(section, key), rest))


def _check_keys(given: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    faults: list[tuple[Location, str]] = []
    for where, reason in refused.items():
        node: Any = given
        for key in where.split("."):
            node = node[key] if isinstance(node, Mapping) and key in node else _check_keys
        if node is not _check_keys:
            faults.append((tuple(where.split(".")), reason))
    if faults:
        raise validation_error(faults)


def _member(given: Mapping[str, Any]) -> ModelConfig:
    """A member's settings, with placeholder name and path."""
    return ModelConfig.model_validate({**given, "name": _PLACEHOLDER, "path": _PLACEHOLDER})


def _max_rows(settings: Mapping[str, Any]) -> int:
    batching = settings.get("batching")
    given = batching.get("max_rows", "auto") if isinstance(batching, Mapping) else "auto"
    return BatchingConfig.model_validate({"max_rows": given}).configured_rows


def _merged(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Settings overlaid with a member's, section by section, key by key."""
    merged = dict(defaults)
    for key, value in own.items():
        before = merged.get(key)
        merged[key] = _merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged


def processes(args: AppArgs) -> Iterator[tuple[int, float, bool]]:
    """Of each pool its processes, the CPUs that each reserves, and whether these are configured."""
    return ((pool.hosts, pool.cpus, "cpus" in pool.model_fields_set) for pool in args.pools)


def served(args: AppArgs) -> Iterator[tuple[str, str, int]]:
    """What is served besides single models: what it is called, its name, and its models."""
    return (("pool", pool.name, len(members)) for pool, members in pools_with_members(args))
