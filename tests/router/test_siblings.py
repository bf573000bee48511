"""What a router knows of the others, and which part of its connections they should have."""

from __future__ import annotations

import pytest

from serve_app.router.siblings import Siblings


def test_a_router_that_is_alone_tells_little_after_its_start() -> None:
    """What nobody hears costs time all the same; but others may have stood still."""
    siblings = Siblings(1, "node")

    told = [siblings.tells(float(second)) for second in range(20)]
    assert [second for second, each in enumerate(told) if each] == [0, 1, 2, 9, 19]
    assert siblings.number(5.0) == 1


def test_whoever_is_heard_is_answered_until_it_is_silent() -> None:
    """Also routers of other nodes."""
    siblings = Siblings(1, "node")
    for second in range(10):
        siblings.tells(float(second))
    assert not siblings.tells(10.0)

    siblings.hear("b", "node", 0.5, 10.0)
    siblings.hear("c", "other", 0.5, 12.0)

    assert siblings.tells(12.0)
    assert [siblings.number(now) for now in (12.0, 15.5, 17.5)] == [3, 2, 1]
    assert Siblings(4, "node").number(0.0) == 4


@pytest.mark.parametrize(
    ("busy", "others", "excess"),
    [
        (1.0, {}, 0.0),
        (1.0, {"b": ("node", 0.0)}, 0.5),
        (0.9, {"b": ("node", 0.0), "c": ("node", 0.3)}, 0.5 / 0.9),
        (0.9, {"b": ("node", 0.8)}, 0.0),
        (0.3, {"b": ("node", 0.0)}, 0.0),
        (0.1, {"b": ("node", 1.0)}, 0.0),
        (1.0, {"b": ("other", 0.0)}, 0.0),
    ],
)
def test_the_busier_one_gives_away(busy: float, others: dict[str, tuple[str, float]], excess: float) -> None:
    """To those of its node, which share its port, and so much that all are equally busy."""
    siblings = Siblings(1, "node")
    for name, (node, its_busy) in others.items():
        siblings.hear(name, node, its_busy, 0.0)

    assert siblings.excess(busy, 1.0) == pytest.approx(excess)
