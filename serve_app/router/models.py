"""The models of a router: added, swapped, removed, and looked up by name and version."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Final

from serve_app.domain.agreed import Told
from serve_app.domain.service import ModelInfo, unknown_model, unknown_version, unloaded_model
from serve_app.domain.versions import model_of
from serve_app.errors import ModelNotFound
from serve_app.payloads import PROVEN, UNVERIFIED, Joinable
from serve_app.router.answer_cache import AnswerCaches
from serve_app.router.dispatcher import Dispatcher
from serve_app.router.served import Served, care_of, may_join, reported
from serve_app.router.settings import ReplicaReport, RoutedModel
from serve_app.router.versions import ModelVersions, VersionTables

_NOTHING_KNOWN: Final = Joinable(PROVEN, "")


class Models:
    """The registry of one router. Inference and administration read it; the router writes it.

    Args:
        dispatcher: Receives replicas' reports of rows and joining.
        cache: Answers repeated requests; ``None``: no model has one.

    Attributes:
        served: By key: a model's name, or the key of one of several versions.
        by_name: By name, in the order in which they were added; of several versions the stable one.
        unverified: Keys of models whose requests share runs without proof.
        versions: The tables of models with several versions, set by the router; ``None``: no model has several.
        ending: Whether the router is not ready any more, though requests are still answered.
    """

    def __init__(self, dispatcher: Dispatcher, cache: AnswerCaches | None = None) -> None:
        self.served: dict[str, Served] = {}
        self.by_name: dict[str, ModelInfo] = {}
        self.unverified: set[str] = set()
        self.versions: VersionTables | None = None
        self.ending = False
        self._unloaded: dict[str, ModelInfo] = {}
        self._dispatcher = dispatcher
        self._scheduler = dispatcher.scheduler
        self._cache = cache

    # ---------------------------------------------------------------- changes

    def add(self, model: RoutedModel) -> None:
        """Add a model, or a version of one. The dispatcher must know it."""
        cache = None if self._cache is None or model.cache is None else self._cache.add_model(model.name, model.cache)
        info, versions = model.info, None
        if info.key:
            versions = self._tables().add(info.name, info.version, info.key, model.traffic)
        self.served[model.name] = Served(model, cache, versions)
        self._unloaded.pop(model.name, None)
        self._show(self.served[model.name])

    def swap(self, model: RoutedModel) -> None:
        """Replace the state of a model's files, for which `ModelInfo.takes_as` holds. Waiting requests run on it."""
        served = self.served[model.name]
        if self._cache is not None and model.cache is not None:
            self._cache.remove_model(model.name)
            served.cache = self._cache.add_model(model.name, model.cache)
        served.take(model)
        self._show(served)

    def remove(self, model: str, *, unloaded: bool = False) -> Awaitable[None]:
        """Remove a model, or a version of one.

        Args:
            model: Its key.
            unloaded: Whether it can be loaded again, so that its name is still known.

        Returns:
            Waits until its requests have ended.

        Raises:
            ModelNotFound: No such model.
        """
        if model not in self.served:
            raise self.unknown(model)
        served = self.served.pop(model)
        info = served.info
        if unloaded:
            self._unloaded[model] = info
        if served.versions is None or self._tables().remove(info.name, info.version, keep=unloaded) is None:
            del self.by_name[info.name]
        else:
            self.publish(served.versions)
        self.unverified.discard(model)
        if self._cache is not None:
            self._cache.remove_model(model)
        return served.ended()

    def _show(self, served: Served) -> None:
        if served.versions is None:
            self.by_name[served.info.name] = served.info
        else:
            self.publish(served.versions)
        if any(verdict.verdict == UNVERIFIED for verdict in served.info.joinable.values()):
            self.unverified.add(served.key)
        else:
            self.unverified.discard(served.key)

    def publish(self, versions: ModelVersions) -> None:
        """Show a model with several versions as its stable one, and each version with the list of all."""
        for key in versions.keys.values():
            served = self.served[key]
            if served.info.versions != versions.versions:
                info = served.info._replace(versions=versions.versions)
                served.info = served.infos[info.revision] = info
        self.by_name[versions.name] = self.served[versions.stable].info

    def _tables(self) -> VersionTables:
        assert self.versions is not None, "models with keys of versions are made by the wing"
        return self.versions

    # ---------------------------------------------------------------- reports of replicas

    def on_joinable(self, model: str, verdicts: Mapping[str, Joinable]) -> None:
        """Record a replica's verdicts, by variant, on which requests may share runs. The most careful replica counts.

        Cached answers of a build whose requests no longer share runs are dropped: they may be wrong.
        """
        served = self.served.get(model)
        if served is None:
            return
        info = served.info
        known = dict(info.joinable)
        for variant, verdict in verdicts.items():
            before = known.get(variant)
            if before is None or before.verdict == PROVEN or care_of(verdict) > care_of(before):
                known[variant] = verdict
        if known == info.joinable:
            return
        served.info = info._replace(joinable=known)
        self._show(served)
        for variant, verdict in known.items():
            self._dispatcher.learn(model, joins={variant: may_join(verdict)})
            joined = may_join(info.joinable.get(variant, _NOTHING_KNOWN))
            if served.cache is not None and joined and not may_join(verdict):
                served.cache.forget(variant)

    def on_warm_up(self, model: str, reports: Sequence[Told | ReplicaReport]) -> None:
        """Record replicas' warm-up measurements, for the status and the rows of a batch."""
        found = self.served[model].warm_up = reported(reports)
        if rows := found.get("compute", {}).get("max_rows"):
            self._dispatcher.learn(model, max_rows=rows)

    # ---------------------------------------------------------------- questions

    def find(self, model: str, version: str | None = None) -> ModelInfo:
        """Look a model up by its name, and by the number or alias of a version; by default the stable one.

        Raises:
            ModelNotFound: There is none; the message lists the known ones.
        """
        info = self.by_name.get(model)
        if info is None:
            raise self.unknown(model)
        if version is None:
            return info
        aliases: Sequence[str] = ()
        if info.key:
            versions = self._tables().models[model]
            if (key := versions.key_of(version)) is not None:
                return self.served[key].info
            aliases = versions.aliases
        elif version in info.versions:
            return info
        raise unknown_version(info, version, aliases)

    def unknown(self, model: str) -> ModelNotFound:
        """The error for a name or key that is not served; it differs for unloaded models."""
        name = model_of(model)
        if name not in self.by_name and name in self.unloaded:
            return unloaded_model(name)
        return unknown_model(model, self.by_name)

    @property
    def unloaded(self) -> Mapping[str, Sequence[ModelInfo]]:
        """Unloaded models by name, as they were last served; of several versions all."""
        found: dict[str, list[ModelInfo]] = {}
        for info in self._unloaded.values():
            found.setdefault(info.name, []).append(info)
        return found

    @property
    def faults(self) -> Mapping[str, str]:
        """Why models, or versions of them, cannot be served: `ModelInfo.fault`, by key."""
        return {key: served.info.fault for key, served in self.served.items() if served.info.fault}

    @property
    def keys(self) -> Sequence[str]:
        """The keys of everything with replicas of its own: models, and versions of models with several."""
        return tuple(self.served)

    def keys_of(self, model: str) -> tuple[str, ...]:
        """The keys of a model: itself, or its versions. Raises `ModelNotFound`."""
        if model in self.served:
            return (model,)
        if self.versions is None or (versions := self.versions.models.get(model)) is None:
            raise self.unknown(model)
        return tuple(versions.keys.values())

    def revision_of(self, key: str) -> str:
        """The revision of its files that a model is served from; empty: it is not served."""
        served = self.served.get(key)
        return "" if served is None else served.info.revision

    def can_work(self, served: Served) -> bool:
        """Whether a model can take work: it has a usable replica, or gets one on demand."""
        if served.info.fault:
            return False
        return served.on_demand or self._scheduler.usable(served.key) > 0 or self._scheduler.can_start(served.key)
