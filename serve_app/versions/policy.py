"""Decides which version of a model answers a request, and which only runs a copy.

Every router decides by itself and all decide alike: the version follows from the table and the client, by a hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from serve_app.errors import InvalidRequest

STABLE: Final = "stable"
"""The alias of the default version. Unless it is set, it is the newest version."""
CANDIDATE: Final = "candidate"
"""The version that `promoted` makes stable by default."""
MOST_ALIASES: Final = 16

Sticky: TypeAlias = Literal["key", "request_id", "none"]
Shares: TypeAlias = tuple[tuple[str, float], ...]
"""Versions that answer requests without a version, and their fractions, which sum up to 1."""

_ALIAS: Final = re.compile(r"[a-z]([a-z0-9._-]{0,61}[a-z0-9])?")
_NO_ALIAS: Final = (
    "must be 1 to 63 lower-case letters, digits, '-', '_' or '.', with a letter first and a letter or digit last"
)
_RANGE: Final = 2.0**64


class Tolerance(Struct, frozen=True, forbid_unknown_fields=True):
    """Largest difference of equal numbers: ``|a - b| <= atol + rtol * |b|``, b being the real answer's."""

    rtol: Annotated[float, Meta(ge=0.0)] = 1e-3
    atol: Annotated[float, Meta(ge=0.0)] = 1e-5


class Shadow(Struct, frozen=True, forbid_unknown_fields=True):
    """A version that runs copies of requests that another one answers.

    Attributes:
        to: The version, or an alias.
        share: Percent of the requests.
        tolerance: By output; of models of media by the field of an answer, e.g. ``score``.
    """

    to: str
    share: Annotated[float, Meta(gt=0.0, le=100.0)] = 100.0
    tolerance: dict[str, Tolerance] = {}


class Traffic(Struct, frozen=True):
    """The configured split of requests over versions.

    Attributes:
        aliases: Versions by their other names.
        weights: Fractions of requests without a version, by version or alias; none: the stable version answers all.
        sticky: The part of a request that always leads to the same version: the API key (without keys the client's
            address), the id of the request, or nothing.
        shadow: ``None``: no copies.
    """

    aliases: dict[str, str] = {}
    weights: dict[str, float] = {}
    sticky: Sticky = "request_id"
    shadow: Shadow | None = None


class Table(Struct, frozen=True):
    """The present split of one model.

    Attributes:
        revision: Number of changes since the configuration. Of two tables the higher one counts.
        previous: The split before the last change; ``None`` if there was none.
    """

    traffic: Traffic
    revision: int = 0
    previous: Traffic | None = None


class TrafficChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a table. Missing parts stay as they are.

    Attributes:
        aliases: Versions by alias; ``None`` removes one. Others stay.
        traffic: All weights.
    """

    aliases: dict[str, int | str | None] | msgspec.UnsetType = msgspec.UNSET
    traffic: dict[str, Annotated[float, Meta(ge=0.0, le=1e9)]] | msgspec.UnsetType = msgspec.UNSET
    sticky: Sticky | msgspec.UnsetType = msgspec.UNSET
    shadow: Shadow | msgspec.UnsetType | None = msgspec.UNSET


TableChange: TypeAlias = Callable[[Table, Sequence[str]], Table]
"""Makes the next table from the present one and the served versions, the newest last. Raises `InvalidRequest`."""


def version_of(traffic: Traffic, versions: Sequence[str], named: str) -> str | None:
    """The version of a number or an alias, or ``None``.

    Args:
        traffic: Has the aliases.
        versions: Those that are served, the newest last.
        named: As a client wrote it.
    """
    if named == STABLE and STABLE not in traffic.aliases:
        return versions[-1]
    version = traffic.aliases.get(named, named)
    return version if version in versions else None


def stable_of(traffic: Traffic, versions: Sequence[str]) -> str:
    """The default version; the newest if the configured one is not served any more."""
    return version_of(traffic, versions, STABLE) or versions[-1]


def shares_of(traffic: Traffic, versions: Sequence[str]) -> Shares:
    """The split of requests without a version. Weights of versions that are not served are left out."""
    found: dict[str, float] = {}
    for target, weight in traffic.weights.items():
        version = version_of(traffic, versions, target)
        if version is not None and weight > 0.0:
            found[version] = found.get(version, 0.0) + weight
    if not found:
        return ((stable_of(traffic, versions), 1.0),)
    total = sum(found.values())
    return tuple((version, weight / total) for version, weight in found.items())


def pick(shares: Shares, model: str, who: str) -> str:
    """Choose a version for a client: the same at every router, and for each version as many clients as its share.

    Weighted rendezvous hashing: if the share of one version grows at the cost of others, its clients keep it, and only
    as many as needed move to it.

    Args:
        shares: One or more.
        model: Its name, so that not always the same clients try new versions.
        who: The sticky part of the request.
    """
    if len(shares) == 1:
        return shares[0][0]
    return max(shares, key=lambda share: share[1] / -log(_uniform(f"{model}/{share[0]}/{who}")))[0]


def _uniform(text: str) -> float:
    """A pseudo-random number in (0, 1), always the same for a text."""
    return (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) + 0.5) / _RANGE


def faults_of(traffic: Traffic, versions: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Faults of a table: places as in the configuration, and messages.

    Args:
        traffic: The new split.
        versions: Those that are served, the newest last.
    """
    served = ", ".join(versions)
    if len(traffic.aliases) > MOST_ALIASES:
        yield ("aliases",), f"must be at most {MOST_ALIASES}"
    for alias, version in traffic.aliases.items():
        if not _ALIAS.fullmatch(alias):
            yield ("aliases", alias), _NO_ALIAS
        if version not in versions:
            yield ("aliases", alias), f"there is no version {version[:64]!r}; versions: {served}"
    names = ", ".join(dict.fromkeys((STABLE, *traffic.aliases)))
    unknown = f"is no version and no alias; versions: {served}; aliases: {names}"
    for target in traffic.weights:
        if version_of(traffic, versions, target) is None:
            yield ("traffic", target), unknown
    if traffic.weights and not any(traffic.weights.values()):
        yield ("traffic",), "needs a weight that is more than 0"
    if traffic.shadow is not None and version_of(traffic, versions, traffic.shadow.to) is None:
        yield ("shadow", "to"), f"{traffic.shadow.to[:64]!r} {unknown}"


def changed(table: Table, versions: Sequence[str], change: TrafficChange) -> Table:
    """The next table, with a change.

    Raises:
        InvalidRequest: It names something unknown.
    """
    now = table.traffic
    aliases = dict(now.aliases)
    if change.aliases is not msgspec.UNSET:
        for alias, version in change.aliases.items():
            if version is None:
                aliases.pop(alias, None)
            else:
                aliases[alias] = str(version)
    traffic = Traffic(
        aliases,
        now.weights if change.traffic is msgspec.UNSET else change.traffic,
        now.sticky if change.sticky is msgspec.UNSET else change.sticky,
        now.shadow if change.shadow is msgspec.UNSET else change.shadow,
    )
    return _next(table, traffic, versions)


def promoted(table: Table, versions: Sequence[str], named: str = CANDIDATE) -> Table:
    """The next table, in which a version is the stable one and answers everything, and is no shadow any more.

    Raises:
        InvalidRequest: There is no such version or alias.
    """
    now = table.traffic
    version = version_of(now, versions, named)
    if version is None:
        raise InvalidRequest(f"to: {named[:64]!r} is no version and no alias; versions: {', '.join(versions)}")
    shadow = now.shadow
    if shadow is not None and version_of(now, versions, shadow.to) == version:
        shadow = None
    return _next(table, Traffic(now.aliases | {STABLE: version}, {}, now.sticky, shadow), versions)


def rolled_back(table: Table, versions: Sequence[str]) -> Table:
    """The next table, as before the last change; this can be undone in the same way.

    Raises:
        InvalidRequest: There was no change.
    """
    if table.previous is None:
        raise InvalidRequest("there is nothing to roll back: the table is as the configuration has set it")
    return _next(table, table.previous, versions)


def _next(table: Table, traffic: Traffic, versions: Sequence[str]) -> Table:
    for place, fault in faults_of(traffic, versions):
        raise InvalidRequest(f"{'.'.join(place)}: {fault}")
    return Table(traffic, table.revision + 1, table.traffic)


def described(model: str, table: Table, versions: Sequence[str]) -> Mapping[str, object]:
    """A table for people and tools, JSON-able."""
    traffic = table.traffic
    return {
        "model": model,
        "revision": table.revision,
        "versions": list(versions),
        "aliases": {STABLE: stable_of(traffic, versions)} | traffic.aliases,
        "traffic": traffic.weights or {STABLE: 100.0},
        "sticky": traffic.sticky,
        "shadow": msgspec.to_builtins(traffic.shadow),
        "shares": {version: round(share, 6) for version, share in shares_of(traffic, versions)},
    }


def origin_of(traffic: Traffic, versions: Sequence[str]) -> str:
    """The identity of a configured table: a digest of it and of the served versions."""
    content = msgspec.json.encode((traffic, sorted(versions)), order="deterministic")
    return hashlib.sha256(content).hexdigest()[:16]
