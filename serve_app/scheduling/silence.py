"""Replicas that send no data while they have bundles: their entries are tried elsewhere, their answers still count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from serve_app.scheduling.bundles import Bundle, BundlesInFlight
from serve_app.scheduling.entry import Entry, EntryState
from serve_app.scheduling.model_state import ModelState
from serve_app.scheduling.slots import Replica

_QUEUED, _RUNNING = EntryState.QUEUED, EntryState.RUNNING


class SilentReplicas:
    """The replicas that are silent now.

    Args:
        bundles: All bundles in flight.
        models: All models, by name.
        touch: Has the next decision look at a model.

    Attributes:
        replicas: They themselves; each has a bundle in flight.
    """

    __slots__ = ("_bundles", "_models", "_touch", "replicas")

    def __init__(
        self, bundles: BundlesInFlight, models: Mapping[str, ModelState], touch: Callable[[ModelState], None]
    ) -> None:
        self.replicas: set[Replica] = set()
        self._bundles = bundles
        self._models = models
        self._touch = touch

    def begin(self, replica: Replica) -> None:
        """A replica is silent: queue what it has as a retry."""
        self.replicas.add(replica)
        for bundle_id in list(replica.bundles):
            if (bundle := self._bundles.get(bundle_id)) is not None:
                for entry in bundle.entries:
                    self.try_elsewhere(entry, bundle)

    def end(self, replica: Replica, model: ModelState | None) -> None:
        """A replica is silent no more: what is queued as a retry is left to it. ``None``: its model is no more."""
        self.replicas.discard(replica)
        if model is None:
            return
        for bundle_id in replica.bundles:
            if (bundle := self._bundles.get(bundle_id)) is not None:
                self._take_back(bundle, model)

    def keep(self, replicas: Iterable[Replica]) -> None:
        """Forget all but these."""
        self.replicas.intersection_update(replicas)

    def forget(self, replicas: Iterable[Replica]) -> None:
        """These are no more."""
        self.replicas.difference_update(replicas)

    def with_bundles(self, model: str, name: str) -> set[Replica]:
        """Replicas of a name with bundles in flight: at most one that is listed, and one that is no longer."""
        return {
            bundle.replica
            for bundle in self._bundles.all()
            if bundle.model == model and bundle.replica.name == name and not bundle.detached
        }

    def try_elsewhere(self, entry: Entry, bundle: Bundle) -> None:
        """Queue an entry that only a silent replica has, as a retry. The answer of that replica still counts.

        The entry stays in its bundle. It does not move if it was tried twice, or is answered in parts: how long these
        take is for the model to say.
        """
        if entry.state is not _RUNNING or entry.attempts != 1 or entry.bundles != (bundle.id,) or entry.answer_by:
            return
        if bundle.detached or bundle.replica.name is None:
            return
        model = self._models[bundle.model]
        entry.state, entry.avoid = _QUEUED, bundle.replica.name
        model.queue.push(entry)
        self._touch(model)

    def try_last_elsewhere(self, entry: Entry) -> None:
        """The same of an entry whose other replicas have given it back."""
        if len(entry.bundles) == 1:
            last = self._bundles.get(entry.bundles[0])
            if last is not None and last.replica in self.replicas:
                self.try_elsewhere(entry, last)

    def try_all_elsewhere(self, model: ModelState) -> None:
        """The same of all entries that were left to silent replicas, now that their model can run elsewhere again."""
        for bundle in self._bundles.all() if self.replicas else ():
            if bundle.model == model.settings.name and bundle.replica in self.replicas:
                for entry in bundle.entries:
                    self.try_elsewhere(entry, bundle)

    @staticmethod
    def _take_back(bundle: Bundle, model: ModelState) -> None:
        for entry in bundle.entries:
            if entry.state is _QUEUED and bundle.id in entry.bundles:
                model.queue.remove(entry)
                entry.state, entry.avoid = _RUNNING, None
