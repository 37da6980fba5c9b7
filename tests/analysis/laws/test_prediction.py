"""Where a fit may speak."""

from __future__ import annotations

import math

import pytest

from dpbench.analysis.laws.prediction import Reach, sizes_beyond


@pytest.mark.parametrize(
    ("group_size", "kind"),
    [
        *((1, "measured"), (3, "interpolated"), (8, "measured"), (9, "extrapolated")),
        *((32, "extrapolated"), (33, "refused"), (64, "refused"), (10_000, "refused")),
    ],
)
def test_kinds(group_size: int, kind: str) -> None:
    assert Reach(measured=(1, 2, 4, 8)).kind(group_size) == kind


def test_a_refusal_says_how_far_it_would_be() -> None:
    reason = Reach(measured=(1, 2)).refusal(16)
    assert reason is not None
    assert "16 is 8 × the largest measured group size, 2" in reason
    assert "below the smallest" in (Reach(measured=(8, 16)).refusal(4) or "")


def test_an_unmeasured_node_boundary_is_not_crossed() -> None:
    within = Reach(measured=(1, 8), replicas_per_node=8)
    assert within.kind(4) == "interpolated"
    assert "more than one node of 8" in (within.refusal(9) or "")
    assert Reach(measured=(1, 8, 16), replicas_per_node=8).kind(32) == "extrapolated"


def test_every_replica_needs_a_sample() -> None:
    reach = Reach(measured=(1, 8), most_replicas=16)
    assert reach.kind(16) == "extrapolated"
    assert "cannot share a batch of 16" in (reach.refusal(17) or "")


def test_distance_is_in_doublings() -> None:
    reach = Reach(measured=(1, 2, 4, 8))
    assert reach.octaves(32) == 2
    assert reach.octaves(3) == pytest.approx(math.log2(4 / 3))


def test_what_is_predicted_unasked() -> None:
    assert sizes_beyond((1, 2, 6)) == (12, 24)
