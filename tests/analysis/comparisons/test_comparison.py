"""Candidate against baseline: ratios worked by hand, outcomes, what is inconclusive, and which
environments may be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.analysis.comparisons.comparison import (
    ComparedRow,
    Comparison,
    compare_sides,
)
from dpbench.analysis.comparisons.verdict import classify
from dpbench.errors import NotComparable
from dpbench.records.environment import Environment
from dpbench.records.trial import MemoryPeaks
from tests.analysis.builders import (
    compare_speeds,
    rank,
    record,
    runs,
    side,
    throughputs,
    trial,
    varied,
    window,
)
from tests.builders import HERE

QUIET = (100.0, 101.0, 99.0, 100.5, 99.5)
NOISY = (100.0, 120.0, 80.0, 110.0, 90.0)


def only(compared: Comparison, within: float = 0.03) -> ComparedRow:
    ((row,),) = classify(compared, within=within).rows.values()
    return row


@pytest.mark.parametrize(("in_turn", "outcome"), [(True, "faster"), (False, "inconclusive")])
def test_sides_that_ran_in_turn_are_compared_within_their_repetitions(
    in_turn: bool, outcome: str
) -> None:
    drifting = (100.0, 150.0, 80.0, 130.0, 90.0)
    ours = [x * f for x, f in zip(drifting, (1.10, 1.11, 1.09, 1.10, 1.10), strict=True)]
    sides = side("a", runs(trial(), drifting)), side("b", runs(trial(), ours))
    row = only(compare_sides(*sides, ["images_per_second"], ran_in_turn=in_turn))
    assert row.outcome == outcome
    assert row.change is not None
    assert row.change.estimate.value == pytest.approx(1 / 1.1, rel=1e-3)
    assert row.change.is_paired == in_turn
    if in_turn:
        assert row.change.degrees_of_freedom == 4


def test_the_same_is_an_interval_inside_the_limits() -> None:
    compared = throughputs({16: QUIET}, {16: [x / 1.005 for x in QUIET]})
    assert only(compared).outcome == "same"
    assert only(compared, within=0.01).outcome == "inconclusive"


def test_memory_is_better_or_worse_and_equal_memory_the_same() -> None:
    same = runs(trial(), QUIET)
    doubled = [
        replace(r, ranks=(replace(r.ranks[0], peaks=MemoryPeaks(host_bytes=2**30 + i)),))
        for i, r in enumerate(same)
    ]
    for candidate, outcome in ((same, "same"), (doubled, "worse")):
        sides = side("a", same), side("b", candidate)
        assert only(compare_sides(*sides, ["peak_memory_bytes"])).outcome == outcome


def compared(*environments: Environment, force: bool = False) -> Comparison:
    first, second = (
        side(
            label,
            runs(trial(), (100.0, 101.0), environment_ids=(environment.environment_id,)),
            environments={environment.environment_id: environment},
        )
        for label, environment in zip("ab", environments, strict=True)
    )
    return compare_speeds(first, second, force=force)


@pytest.mark.parametrize(
    ("now", "notes"), [("a", ()), ("b", ("model.py has changed between the two",))]
)
def test_an_edited_model_may_be_compared_with_what_it_was_and_it_is_said(
    now: str, notes: tuple[str, ...]
) -> None:
    trials = (
        varied(trial(), architecture="model.py:build", files_sha256=letter * 64)
        for letter in ("a", now)
    )
    found = compare_speeds(*(side("", runs(one, QUIET[:3])) for one in trials))
    assert only(found).repetitions == (3, 3)
    assert found.notes == notes


def test_another_host_of_the_same_kind_may_be_compared_and_it_is_said() -> None:
    same = compared(HERE, HERE)
    assert (same.differences, same.notes) == ((), ())
    assert compared(HERE, replace(HERE, hostname="x")).notes == ("hosts differ: h -> x",)


def test_every_host_of_a_side_is_told_from_those_of_the_other() -> None:
    h, x, y = (replace(HERE, hostname=name) for name in "hxy")
    known = {one.environment_id: one for one in (h, x, y)}
    before, after = (
        side("", runs(trial(), QUIET[:3], environment_ids=ids), environments=known)
        for ids in ((h.environment_id, x.environment_id), (y.environment_id, x.environment_id))
    )
    assert compare_speeds(before, after).notes == ("hosts differ: h, x -> y, x",)


def test_speeds_in_other_items_are_refused() -> None:
    before, after = (
        side(item, runs(trial(), (100.0, 101.0), item=item)) for item in ("samples", "steps")
    )
    with pytest.raises(NotComparable, match=r"the sides count different items: samples, steps$"):
        only(compare_speeds(before, after))


def test_another_machine_is_refused_and_the_difference_named() -> None:
    other = HERE, replace(HERE, cpu="Z80", cores=1)
    with pytest.raises(
        NotComparable, match=r"a and b come from .*cpu: .* -> 'Z80'; cores: .* -> 1"
    ):
        compared(*other)
    forced = compared(*other, force=True)
    assert (len(forced.differences), forced.notes) == (2, ())


def test_another_class_of_process_group_is_named_beside_the_version() -> None:
    environments = [replace(HERE, versions={"torch": torch}) for torch in ("2.14.0", "2.15.0")]
    sides = []
    for one, name in zip(environments, ("ProcessGroupNCCL", "ProcessGroupNCCL2"), strict=True):
        ranks, ids = [rank(0, window([0.1], 32))], (one.environment_id,)
        measured = record(trial(), ranks, environment_ids=ids, group_class=name)
        sides.append(side(name, [measured], environments={one.environment_id: one}))
    assert compare_speeds(*sides, force=True).differences == (
        "versions: torch 2.14.0 -> 2.15.0",
        "process group ProcessGroupNCCL -> ProcessGroupNCCL2",
    )
