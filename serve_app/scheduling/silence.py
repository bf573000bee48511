"""Replicas that send no data while they have bundles: entries are tried elsewhere, and late answers still count."""

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
        touch: Schedules a look at a model in the next decision.

    Attributes:
        replicas: Each has a bundle in flight.
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
        """Queue a silent replica's entries as retries."""
        self.replicas.add(replica)
        for bundle_id in list(replica.bundles):
            if (bundle := self._bundles.get(bundle_id)) is not None:
                for entry in bundle.entries:
                    self.try_elsewhere(entry, bundle)

    def end(self, replica: Replica, model: ModelState | None) -> None:
        """Leave retries of a replica that sends data again to it. ``None``: its model was removed."""
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
        """Forget these."""
        self.replicas.difference_update(replicas)

    def with_bundles(self, model: str, name: str) -> set[Replica]:
        """Replicas of a name with bundles in flight: at most one listed, and one no longer listed."""
        return {
            bundle.replica
            for bundle in self._bundles.all()
            if bundle.model == model and bundle.replica.name == name and not bundle.detached
        }

    def try_elsewhere(self, entry: Entry, bundle: Bundle) -> None:
        """Queue an entry that only a silent replica has, as a retry. That replica's answer still counts.

        The entry stays in its bundle. It does not move if it was tried twice, or is answered in parts, whose duration
        is the model's to choose.
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
        """Do the same for an entry that its other replicas have given back."""
        if len(entry.bundles) == 1:
            last = self._bundles.get(entry.bundles[0])
            if last is not None and last.replica in self.replicas:
                self.try_elsewhere(entry, last)

    def try_all_elsewhere(self, model: ModelState) -> None:
        """Do the same for all entries left to silent replicas, now that their model can run elsewhere again."""
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
