"""Which models get the replicas that a cluster has room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.scheduling.room import Claim, SharedRoom, share

claims = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(
        Claim,
        replicas=st.integers(0, 6),
        minimum=st.integers(0, 2),
        held=st.integers(0, 6),
        needed=st.floats(0.0, 6.0),
        value=st.floats(0.0, 1000.0),
        needs=st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.floats(0.01, 2.0)),
    ),
)
rooms = st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.floats(0.01, 10.0))


def claim(replicas: int, value: float, cpus: float = 1.0, held: int = 1, minimum: int = 1) -> Claim:
    """A model that needs all that it asks for."""
    return Claim(replicas, minimum, held, float(replicas), value, {"CPU": cpus})


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


def contenders(needed: float) -> dict[str, Claim]:
    """Two models of equal worth for the third replica; ``b`` needs so many."""
    return {
        "a": Claim(2, 1, 2, 1.5, 150.0, {"CPU": 1.0}, 10.0),
        "b": Claim(2, 1, 1, needed, 100.0 * needed, {"CPU": 1.0}, 10.0),
    }


def test_what_is_there_stays_unless_much_is_saved() -> None:
    """A replica that saves 50 requests a second moves after two starts' worth, 1,000, was missed, 40 a second."""
    room = SharedRoom()
    for second in range(25):
        assert room.decide(contenders(1.9), {"CPU": 3.0}, second) == {"a": 2, "b": 1}
    assert room.decide(contenders(1.9), {"CPU": 3.0}, 25.1) == {"a": 1, "b": 2}


def test_noise_moves_no_replica() -> None:
    """What was missed is forgotten when the other model saves more again."""
    room = SharedRoom()
    for second in range(100):
        needed = 1.9 if second % 10 else 1.1
        assert room.decide(contenders(needed), {"CPU": 3.0}, second) == {"a": 2, "b": 1}


def test_idle_replicas_move_at_the_next_decision() -> None:
    """They save nothing."""
    asked = contenders(1.9) | {"a": Claim(2, 0, 2, 0.0, 0.0, {"CPU": 1.0}, 10.0)}
    room = SharedRoom()
    assert room.decide(asked, {"CPU": 2.0}, 0.0) == {"a": 1, "b": 1}
    assert room.decide(asked, {"CPU": 2.0}, 1.0) == {"a": 0, "b": 2}


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
