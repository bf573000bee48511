"""Keys that earlier versions had, and that files may still set."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from serve_app.config.faults import misfit

_log = logging.getLogger(__name__)


class Removed(NamedTuple):
    """A switch that was removed.

    Attributes:
        key: Its name.
        harmless: The value that asks for what happens anyway.
        fault: Why the other value cannot be had any more.
        note: Why ``harmless`` need not be said.
    """

    key: str
    harmless: bool
    fault: str
    note: str


def without_removed(given: Any, section: str, removed: Sequence[Removed]) -> Any:
    """What was given for a section, without removed keys. Each that asks for nothing else is told in the log.

    Args:
        given: As in the file; returned as it is where it is not a mapping.
        section: Its name, for the log.
        removed: Its removed keys.

    Raises:
        ValidationError: A removed key asks for what is not there any more.
    """
    if not isinstance(given, Mapping):
        return given
    found = [each for each in removed if each.key in given]
    refused = [each for each in found if given[each.key] is not each.harmless]
    if refused:
        raise misfit([((each.key,), f"was removed, leave it out: {each.fault}") for each in refused])
    for key, harmless, _, note in found:
        value = str(harmless).lower()
        _log.warning("%s.%s: %s has no effect any more, leave it out: %s", section, key, value, note)
    dropped = {each.key for each in found}
    return {key: value for key, value in given.items() if key not in dropped} if dropped else given


def with_new_names(given: Any, section: str, renamed: Mapping[str, str]) -> Any:
    """What was given for a section, with keys by the names that they have now. Each former one is told in the log.

    Args:
        given: As in the file; returned as it is where it is not a mapping.
        section: Its name, for the log.
        renamed: The new name by the former one.

    Raises:
        ValidationError: A setting is given by both of its names.
    """
    if not isinstance(given, Mapping) or renamed.keys().isdisjoint(given):
        return given
    found = [key for key in given if key in renamed]
    twice = [key for key in found if renamed[key] in given]
    if twice:
        raise misfit([((key,), f"is {renamed[key]} now, which is given, too: leave this one out") for key in twice])
    for key in found:
        _log.warning("%s.%s is called %s now; the former name works until version 0.2", section, key, renamed[key])
    return {renamed.get(key, key): value for key, value in given.items()}


def with_moved(given: Any, source: str, target: str, keys: Sequence[str]) -> Any:
    """What was given, with keys of one of its sections in another. Each that was moved is told in the log.

    Args:
        given: As in the file; returned as it is where it, or the section, is not a mapping.
        source: The section where the keys were.
        target: The section where they are.
        keys: Their names, the same in both.

    Raises:
        ValidationError: A setting is given in both places.
    """
    section = given.get(source) if isinstance(given, Mapping) else None
    after = given.get(target, {}) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not isinstance(after, Mapping):
        return given
    found = [key for key in keys if key in section]
    if twice := [key for key in found if key in after]:
        raise misfit([((source, key), f"is {target}.{key} now, which is given, too: leave it out") for key in twice])
    for key in found:
        _log.warning("%s.%s is %s.%s now; the former place works until version 0.2", source, key, target, key)
    if not found:
        return given
    kept = {key: value for key, value in section.items() if key not in found}
    return {**given, source: kept, target: {**after, **{key: section[key] for key in found}}}
