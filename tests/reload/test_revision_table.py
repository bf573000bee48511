"""Replicas, routers and what is agreed on, in any order: nothing runs on a revision that it was not meant for."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serve_app.replica.revision_table import Place, RevisionTable

NAMES = ("a", "b", "c", "d")
BASE = "a"


class Replica:
    """One replica as others see it: its table, and the bundles that it has."""

    def __init__(self, agreed: str) -> None:
        self.table = RevisionTable(agreed or None)
        self.bundles: list[tuple[int, str]] = []  # entry, and what runs it
        self.open = {agreed} if agreed else set()

    def close(self, names: list[str]) -> None:
        """Close revisions that nothing runs on."""
        assert not {name for _, name in self.bundles}.intersection(names)
        assert self.open.issuperset(names)
        self.open.difference_update(names)


class ReloadMachine(RuleBasedStateMachine):
    """Loads, failures, unloads, bundles in flight, routers that hear late, and replicas that die or start late."""

    def __init__(self) -> None:
        super().__init__()
        self.agreed = BASE
        self.routers = [BASE, BASE]
        self.replicas = [Replica(BASE), Replica(BASE)]
        self.waiting: dict[int, str] = {}  # entries by what their router takes for agreed on
        self.ended: set[int] = set()
        self.entries = 0

    @rule(router=st.integers(0, 1))
    def arrive(self, router: int) -> None:
        """A request comes to a router that serves the model."""
        if self.routers[router]:
            self.entries += 1
            self.waiting[self.entries] = self.routers[router]

    @rule(router=st.integers(0, 1), at=st.integers(0, 1))
    def send(self, router: int, at: int) -> None:
        """A router sends what waits; a replica that does not have the revision gives it back."""
        named, replica = self.routers[router], self.replicas[at]
        if not named:
            return
        for entry in [entry for entry, known in self.waiting.items() if known == named]:
            runs_on = replica.table.take(named)
            if runs_on is not None:
                assert runs_on == named
                assert runs_on in replica.open
                del self.waiting[entry]
                replica.bundles.append((entry, runs_on))

    @rule(at=st.integers(0, 1))
    def finish(self, at: int) -> None:
        """A replica answers its oldest bundle."""
        replica = self.replicas[at]
        if replica.bundles:
            entry, ran = replica.bundles.pop(0)
            self.ended.add(entry)
            if replica.table.end(ran):
                replica.close([ran])

    @rule(at=st.integers(0, 1), name=st.sampled_from(NAMES))
    def begin(self, at: int, name: str) -> None:
        """A replica is asked to load a revision."""
        table = self.replicas[at].table
        if name not in table and not table.revive(name):
            table.begin(name)

    @rule(at=st.integers(0, 1), works=st.booleans())
    def loaded(self, at: int, works: bool) -> None:
        """It has loaded it, or failed to."""
        replica = self.replicas[at]
        if replica.table.loading:
            if works:
                replica.open.add(replica.table.loading)
                replica.table.loaded()
            else:
                replica.table.failed()

    @precondition(lambda self: all(replica.table.at(Place.CANDIDATE) for replica in self.replicas))
    @rule()
    def agree(self) -> None:
        """All replicas have a candidate; if it is the same one, it is agreed on."""
        (first, *_), (second, *_) = (replica.table.at(Place.CANDIDATE) for replica in self.replicas)
        if first == second:
            self.agreed = first

    @rule()
    def unload(self) -> None:
        """The model is unloaded."""
        self.agreed = ""

    @rule(router=st.integers(0, 1))
    def settle_router(self, router: int) -> None:
        """A router turns to what is agreed on, whenever it hears of it. What waits goes with it, or is refused."""
        before, self.routers[router] = self.routers[router], self.agreed
        for entry, known in list(self.waiting.items()):
            if known == before:
                if self.agreed:
                    self.waiting[entry] = self.agreed
                else:
                    del self.waiting[entry]
                    self.ended.add(entry)

    @rule(at=st.integers(0, 1))
    def settle_replica(self, at: int) -> None:
        """A replica turns to what is agreed on, if it has it."""
        replica = self.replicas[at]
        if not self.agreed or self.agreed in replica.table:
            replica.close(replica.table.agree(self.agreed))
            assert replica.table.current == (self.agreed or None)

    @rule(at=st.integers(0, 1))
    def die(self, at: int) -> None:
        """A replica dies: what it had waits again, and its successor begins with what is agreed on."""
        for entry, ran in self.replicas[at].bundles:
            self.waiting[entry] = ran
        self.replicas[at] = Replica(self.agreed)
        for entry, known in list(self.waiting.items()):  # their routers are the ones that serve what they know
            if known not in self.routers:
                self.waiting[entry] = next((router for router in self.routers if router), known)

    @invariant()
    def every_entry_is_somewhere(self) -> None:
        """Each waits, is at one replica, or has ended: none is lost, none is twice."""
        at_replicas = [entry for replica in self.replicas for entry, _ in replica.bundles]
        everywhere = [*self.waiting, *at_replicas, *self.ended]
        assert sorted(everywhere) == list(range(1, self.entries + 1))

    @invariant()
    def what_runs_is_open(self) -> None:
        """Nothing runs on a closed revision, and at most three are open: retired ones go when they are done."""
        for replica in self.replicas:
            assert {name for _, name in replica.bundles} <= replica.open
            idle = replica.open - {name for _, name in replica.bundles}
            known = {*replica.table.at(Place.CURRENT), *replica.table.at(Place.CANDIDATE)}
            assert idle <= known
            assert len(replica.table.at(Place.CURRENT)) <= 1
            assert len(replica.table.at(Place.CANDIDATE)) <= 1


TestReload = ReloadMachine.TestCase


def test_a_bundle_runs_on_what_it_names_and_nothing_else() -> None:
    """One that names none runs on the current revision; one that names what is not here does not run."""
    table = RevisionTable("a")
    assert table.take("") == "a"
    assert table.take("b") is None
    assert table.begin("b")
    assert table.take("b") is None
    table.loaded()
    assert table.take("b") == "b"
    assert table.take("") == "a"
    assert table.agree("b") == []
    assert table.take("a") is None
    assert not table.end("a")
    assert table.end("a")
    assert table.current == "b"


def test_one_is_loaded_at_a_time_and_one_waits_to_be_agreed_on() -> None:
    """Of two who load at once, one is refused."""
    table = RevisionTable("a")
    assert table.begin("b")
    assert not table.begin("c")
    table.loaded()
    assert not table.begin("c")
    assert table.agree("a") == ["b"]
    assert table.begin("c")
    table.failed()
    assert table.begin("d")


def test_a_retired_revision_comes_back_while_it_still_answers() -> None:
    """It need not be loaded again."""
    table = RevisionTable("a")
    table.begin("b")
    table.loaded()
    assert table.take("a") == "a"
    assert table.agree("b") == []
    assert table.revive("a")
    assert table.agree("a") == ["b"]
    assert not table.end("a")
    assert table.current == "a"


def test_an_unloaded_model_runs_nothing() -> None:
    """Its session is closed with its last answer."""
    table = RevisionTable("a")
    table.take("a")
    assert table.agree("") == []
    assert table.take("") is None
    assert table.end("a")
    assert table.current is None
