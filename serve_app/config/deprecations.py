"""Keys that earlier versions had, and that files may still set."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from serve_app.config.problems import Location, place, validation_error

_log = logging.getLogger(__name__)


class RemovedKey(NamedTuple):
    """A switch that was removed.

    Attributes:
        key: Its name.
        harmless: The value that asks for what happens anyway.
        reason: Why the other value is no longer available.
        note: Why ``harmless`` need not be set.
    """

    key: str
    harmless: bool
    reason: str
    note: str


def drop_removed_keys(given: Any, section: str, removed: Sequence[RemovedKey]) -> Any:
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
        raise validation_error([((each.key,), f"was removed, leave it out: {each.reason}") for each in refused])
    for key, harmless, _, note in found:
        value = str(harmless).lower()
        _log.warning("%s.%s: %s has no effect any more, leave it out: %s", section, key, value, note)
    dropped = {each.key for each in found}
    return {key: value for key, value in given.items() if key not in dropped} if dropped else given


class Renewed(NamedTuple):
    """A document in which every setting stands where it belongs now.

    Attributes:
        data: The document.
        written: Where those that have moved were written, by where they stand now.
        faults: Settings that are given twice: where, and what is wrong.
    """

    data: Any
    written: Mapping[Location, Location]
    faults: Sequence[tuple[Location, str]]


def with_new_places(data: Any, section: str, moved: Mapping[str, tuple[str, ...]]) -> Renewed:
    """Put the keys that a section of a document had where they are now. Each is told in the log.

    Of a setting that is given twice the place where it is now counts, or else the first of two former keys.

    Args:
        data: As in the file. What is no mapping stays as it is, to be found by whoever checks it.
        section: Key of the section in the document.
        moved: Where they are now, below the section, by former key.
    """
    given = data.get(section) if isinstance(data, Mapping) else None
    if not isinstance(given, Mapping) or moved.keys().isdisjoint(given):
        return Renewed(data, {}, ())
    kept = {key: value for key, value in given.items() if key not in moved}
    renewed: dict[Any, Any] = {key: dict(value) if isinstance(value, Mapping) else value for key, value in kept.items()}
    written: dict[Location, Location] = {}
    faults: list[tuple[Location, str]] = []
    for key in (key for key in given if key in moved):
        former, now = (section, key), (section, *moved[key])
        *groups, name = moved[key]
        holder: Any = renewed
        for group in groups:
            holder = holder.setdefault(group, {}) if isinstance(holder, dict) else None
        if not isinstance(holder, dict):
            continue  # a group is no mapping, which is a fault of its own
        if name in holder:
            twice = f"{place(written[now])} gives, too" if now in written else "is given, too"
            faults.append((former, f"is {place(now)} now, which {twice}: leave this one out"))
            continue
        _log.warning("%s is %s now; the former key works until version 0.2", place(former), place(now))
        holder[name] = given[key]
        written[now] = former
    return Renewed({**data, section: renewed}, written, faults)


def rename_deprecated_keys(given: Any, section: str, renamed: Mapping[str, str]) -> Any:
    """What was given for a section, with keys by the names that they have now. Each former one is told in the log.

    Args:
        given: As in the file; returned as it is where it is not a mapping.
        section: Its name, for the log.
        renamed: The new name by the former one.

    Raises:
        ValidationError: A setting is given by both of its names.
    """
    renewed = with_new_places({section: given}, section, {former: (name,) for former, name in renamed.items()})
    if renewed.faults:
        raise validation_error([(location[1:], fault) for location, fault in renewed.faults])
    return renewed.data[section]


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
        raise validation_error(
            [((source, key), f"is {target}.{key} now, which is given, too: leave it out") for key in twice]
        )
    for key in found:
        _log.warning("%s.%s is %s.%s now; the former place works until version 0.2", source, key, target, key)
    if not found:
        return given
    kept = {key: value for key, value in section.items() if key not in found}
    return {**given, source: kept, target: {**after, **{key: section[key] for key in found}}}
