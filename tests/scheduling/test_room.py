"""Which models get the replicas that a cluster has room for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from serve_app.scheduling.room import Claim, SharedRoom, share

claims = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        Claim,
        replicas=st.integers(0, 6),
        minimum=st.integers(0, 2),
        target=st.integers(0, 6),
        needed=st.floats(0.0, 6.0),
        value=st.floats(0.0, 1000.0),
        needs=st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.floats(0.01, 2.0)),
        start_s=st.floats(0.0, 300.0),
    ),
)
rooms = st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.floats(0.01, 10.0))


def claim(replicas: int, value: float, cpus: float = 1.0, minimum: int = 1) -> Claim:
    """A model that needs all that it asks for."""
    return Claim(replicas, minimum, 1, float(replicas), value, {"CPU": cpus}, 10.0)


@given(claims, rooms)
def test_the_room_is_kept_and_used(asked: dict[str, Claim], room: dict[str, float]) -> None:
    """Beyond the minima; a model with fewer than asked for finds no room for another one."""
    numbers = share(asked, room)
    left = {
        name: amount - sum(numbers[model] * claim.needs.get(name, 0.0) for model, claim in asked.items())
        for name, amount in room.items()
    }
    for model, each in asked.items():
        assert min(each.minimum, each.replicas) <= numbers[model] <= each.replicas
        if numbers[model] < each.replicas:
            assert any(left[name] < need for name, need in each.needs.items() if name in left)
    beyond = any(numbers[model] > min(each.minimum, each.replicas) for model, each in asked.items() if each.needs)
    if beyond and all(each.minimum == 0 for each in asked.values()):
        assert all(amount > -1e-6 for amount in left.values())


def test_without_a_limit_everything_is_given() -> None:
    """As on a cluster that grows."""
    assert share({"a": claim(5, 1.0), "b": claim(7, 0.0)}, {}) == {"a": 5, "b": 7}


def test_replicas_go_where_they_save_most() -> None:
    """For their part of the room."""
    assert share({"a": claim(4, 100.0), "b": claim(4, 10.0)}, {"CPU": 5.0}) == {"a": 4, "b": 1}
    assert share({"a": claim(4, 100.0, cpus=2.0), "b": claim(4, 80.0, cpus=1.0)}, {"CPU": 6.0}) == {"a": 1, "b": 4}


def contenders(needed: float, start_s: float = 10.0) -> dict[str, Claim]:
    """Two models, ``a`` with two replicas and ``b`` with one, which needs so many; both ask for two."""
    return {
        "a": Claim(2, 1, 2, 1.5, 150.0, {"CPU": 1.0}, start_s),
        "b": Claim(2, 1, 1, needed, 100.0 * needed, {"CPU": 1.0}, start_s),
    }


def test_what_is_there_stays_unless_much_is_saved() -> None:
    """A replica that saves 50 requests a second moves after two starts' worth, 1,000, was missed, 40 a second."""
    room = SharedRoom()
    for second in range(25):
        assert room.decide(contenders(1.9), {"CPU": 3.0}, second) == {"a": 2, "b": 1}
    assert room.decide(contenders(1.9), {"CPU": 3.0}, 25.1) == {"a": 1, "b": 2}


def test_noise_moves_no_replica() -> None:
    """What one model misses in a second the other would in the next."""
    room = SharedRoom()
    for second in range(500):
        needed = 1.9 if second % 2 else 1.05
        assert room.decide(contenders(needed), {"CPU": 3.0}, second) == {"a": 2, "b": 1}


def test_an_advantage_under_noise_counts() -> None:
    """Nine seconds of ten one model misses what the other would in the tenth: its replica comes, and stays."""
    room = SharedRoom()
    decided = [room.decide(contenders(1.9 if second % 10 else 1.1), {"CPU": 3.0}, second) for second in range(100)]
    assert decided[20] == {"a": 2, "b": 1}
    assert decided[40:] == [{"a": 1, "b": 2}] * 60


def test_idle_replicas_move_after_a_sixth_of_a_start() -> None:
    """They save nothing where they are."""
    room = SharedRoom()
    idle = contenders(1.9) | {"a": Claim(2, 0, 2, 0.0, 0.0, {"CPU": 1.0}, 10.0)}
    for second in range(2):
        assert room.decide(idle, {"CPU": 3.0}, second) == {"a": 2, "b": 1}
    assert room.decide(idle, {"CPU": 3.0}, 2.0) == {"a": 1, "b": 2}


def test_needs_that_take_turns_move_no_replica_to_and_fro() -> None:
    """Each model needs a third one for four seconds, and a start takes thirty."""
    room, decided = SharedRoom(), []
    for second in range(600):
        needed = (2.2, 1.98) if second // 4 % 2 else (1.98, 2.2)
        asked = {name: Claim(3, 1, 2, each, 100.0, {"CPU": 1.0}, 30.0) for name, each in zip("ab", needed, strict=True)}
        decided.append(room.decide(asked, {"CPU": 5.0}, second))
    assert sum(before != after for before, after in pairwise(decided)) <= 1


def test_contests_do_not_disturb_each_other() -> None:
    """A GPU that two models are worth nearly the same for does not keep an idle processor from a third."""
    contest = {name: Claim(1, 0, 0, 1.0, value, {"GPU": 1.0}, 30.0) for name, value in (("c", 2000.0), ("d", 2002.0))}
    room = SharedRoom()
    for second in range(40):
        asked = contenders(1.9) | contest | {"a": Claim(2, 0, 2, 0.5, 50.0, {"CPU": 1.0}, 10.0)}
        numbers = room.decide(asked, {"CPU": 3.0, "GPU": 1.0}, second)
    assert numbers == {"a": 1, "b": 2, "c": 0, "d": 1}


def test_room_that_shrinks_is_left_to_what_saves_most() -> None:
    """In whatever order the models stand."""
    low, high = Claim(4, 1, 4, 4.0, 100.0, {"CPU": 1.0}, 30.0), Claim(4, 1, 4, 4.0, 400.0, {"CPU": 1.0}, 30.0)
    for asked in ({"low": low, "high": high}, {"high": high, "low": low}):
        room = SharedRoom()
        room.decide(asked, {"CPU": 8.0}, 0.0)
        assert room.decide(asked, {"CPU": 4.0}, 1.0) == {"low": 1, "high": 3}


def test_models_that_share_nothing_come_first() -> None:
    """What they use is no room for the others."""
    asked = {"a": claim(4, 100.0)}
    assert SharedRoom().decide(asked, {"CPU": 5.0}, 0.0, [(2, {"CPU": 1.5})]) == {"a": 2}
    assert SharedRoom().decide(asked, {"CPU": 5.0}, 0.0, [(9, {"GPU": 1.0})]) == {"a": 4}


def test_a_replica_of_a_large_model_makes_room_for_several() -> None:
    """And several of a small one for one of a large model, one after the other."""
    small = Claim(4, 0, 4, 4.0, 40.0, {"CPU": 1.0}, 0.0)
    large = Claim(1, 0, 0, 1.0, 1000.0, {"CPU": 2.0}, 0.0)
    assert SharedRoom().decide({"small": small, "large": large}, {"CPU": 4.0}, 0.0) == {"small": 2, "large": 1}
    full = {"small": small._replace(target=0), "large": large._replace(target=1, value=1.0)}
    room = SharedRoom()
    assert room.decide(full, {"CPU": 2.0}, 0.0) == {"small": 1, "large": 0}
    assert room.decide(full, {"CPU": 2.0}, 1.0) == {"small": 2, "large": 0}


def test_work_in_the_background_gets_a_replica_that_is_spare() -> None:
    """It has no requests whose deadlines are weighed."""
    asked = {
        "a": Claim(3, 1, 3, 1.9, 190.0, {"CPU": 1.0}, 10.0),
        "jobs": Claim(1, 0, 0, 0.0, 0.0, {"CPU": 1.0}, 10.0),
    }
    room = SharedRoom()
    assert [room.decide(asked, {"CPU": 3.0}, second)["jobs"] for second in range(4)] == [0, 0, 1, 1]


def test_a_clock_that_jumps_moves_nothing() -> None:
    """A decision counts for five seconds at most, and one in the past for none."""
    room = SharedRoom()
    for now in (0.0, 7200.0, 0.0):
        assert room.decide(contenders(1.9), {"CPU": 3.0}, now) == {"a": 2, "b": 1}


@given(st.lists(st.tuples(claims, rooms), max_size=5))
def test_whatever_was_decided_before_the_room_is_kept(steps: list[tuple[dict[str, Claim], dict[str, float]]]) -> None:
    """Models come and go, and so does room."""
    shared = SharedRoom()
    for second, (asked, room) in enumerate(steps):
        numbers = shared.decide(asked, room, second)
        for model, each in asked.items():
            assert min(each.minimum, each.replicas) <= numbers[model] <= each.replicas
        for name, amount in room.items():
            used = sum(numbers[model] * claim.needs.get(name, 0.0) for model, claim in asked.items())
            least = sum(
                min(claim.minimum, claim.replicas) * claim.needs.get(name, 0.0) for model, claim in asked.items()
            )
            assert used <= max(amount, least) + 1e-6
