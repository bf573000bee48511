"""Priority levels and queue policies of Triton, which each model has there, as settings of the server's classes."""

from __future__ import annotations

from typing import Final, NamedTuple

from serve_app.domain.priorities import DEFAULT_LEVELS
from serve_app.domain.priority import Priority
from serve_app.triton.fields import Fields
from serve_app.triton.positions import Path

_MOST_LEVELS: Final = 64
_DAY_US: Final = 86_400_000_000
CLASSES: Final = tuple(priority.label for priority in Priority)


class ClassSetting(NamedTuple):
    """A setting of a class, as one model has it.

    Attributes:
        name: The class.
        key: ``timeout_ms`` or ``queue``.
        path: The field that says so.
    """

    name: str
    key: str
    value: float
    path: Path


class QueueSettings(NamedTuple):
    """What one model asks of the classes, which all models share.

    Attributes:
        default_level: Level of a request that names none; ``None`` where the model has no levels.
        levels: The field that says so.
        classes: Settings of classes.
    """

    default_level: int | None = None
    levels: Path = ()
    classes: tuple[ClassSetting, ...] = ()


def read_queues(batching: Fields) -> QueueSettings:
    """Read priorities and queue policies from `dynamic_batching`.

    The default level is `normal`, all levels before it are `high`, and all beyond it are `low`.
    """
    count, default = batching.value("priority_levels"), batching.value("default_priority_level")
    policies = batching.entries("priority_queue_policy")
    default_policy = batching.below("default_queue_policy")
    default_level = None
    if count and not 1 <= default <= count:
        batching.fault("default_priority_level", f"must be from 1 to priority_levels {count}, got {default}")
    elif count and default > _MOST_LEVELS:
        batching.note("default_priority_level", f"levels beyond {_MOST_LEVELS} are not mapped: 2 is normal")
    elif count:
        default_level = default
    elif default:
        batching.note("default_priority_level", "counts for nothing without priority_levels")
    found: dict[tuple[str, str], ClassSetting] = {}
    levels: set[str] = set()
    for level, policy in sorted(policies.items(), key=lambda each: int(each[0])):
        if not 1 <= int(level) <= count:
            policy.note("", "counts for nothing: it is of no priority level")
            continue
        name = class_of(int(level), default_level)
        levels.add(name)
        for each in _read_policy(policy, name):
            if (settled := found.setdefault((name, each.key), each)) != each and settled.value != each.value:
                policy.note(
                    _FIELDS[each.key], f"a more urgent level of class {name} has {settled.value:g}, which counts"
                )
    others = [name for name in CLASSES if name not in levels]
    if default_policy is not None and not others:
        default_policy.note("", "counts for nothing: levels of every class have a policy of their own")
    elif default_policy is not None:
        for each in _read_policy(default_policy, others[0]):  # what there is to say of it is said once
            for name in others:
                found[name, each.key] = each._replace(name=name)
    return QueueSettings(default_level, batching.place("default_priority_level"), tuple(found.values()))


def class_of(level: int, default_level: int | None) -> str:
    """The class of a priority level.

    Args:
        level: From 1.
        default_level: The level of a request that names none; ``None``: as numbers are mapped by default.
    """
    if default_level is None:
        return DEFAULT_LEVELS.named.get(level, Priority.LOW).label
    order = Priority.HIGH if level < default_level else Priority.NORMAL if level == default_level else Priority.LOW
    return order.label


def priorities_of(default_level: int) -> dict[int, str]:
    """The classes' `priorities` for a default level: what is not named there is `low`."""
    named = {level: class_of(level, default_level) for level in range(1, default_level + 1)}
    return named | {level: Priority.LOW.label for level in DEFAULT_LEVELS.named if level > default_level}


_FIELDS: Final = {"timeout_ms": "default_timeout_microseconds", "queue": "max_queue_size"}


def _read_policy(policy: Fields, name: str) -> list[ClassSetting]:
    found = []
    action, timeout_us = policy.word("timeout_action"), policy.value("default_timeout_microseconds")
    if action != "REJECT":
        policy.note("timeout_action", "a request whose deadline has passed is always refused")
    if timeout_us and action != "REJECT":
        policy.note("default_timeout_microseconds", "counts for nothing, since it refuses no request there")
    elif timeout_us > _DAY_US:
        policy.note("default_timeout_microseconds", "is more than a day: the class's timeout_ms counts")
    elif timeout_us:
        found.append(ClassSetting(name, "timeout_ms", timeout_us / 1000, policy.place("default_timeout_microseconds")))
    elif policy.has("default_timeout_microseconds"):
        policy.note("default_timeout_microseconds", "every request has a deadline: that of its class, timeout_ms")
    if not policy.value("allow_timeout_override") and policy.has("allow_timeout_override"):
        policy.note("allow_timeout_override", "a request may always name its own deadline")
    if size := policy.value("max_queue_size"):
        found.append(ClassSetting(name, "queue", size, policy.place("max_queue_size")))
    elif policy.has("max_queue_size"):
        policy.note("max_queue_size", "every queue is bounded: the class's queue counts")
    return found
