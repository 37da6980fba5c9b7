"""The faults of `make faults`, a few of each kind, and how their counts are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import __main__ as faults
from tests.faults import disk, host, ranks
from tests.faults.scenario import CannotTry, Scenario, Try, expect


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario",
    [
        scenario
        for module in (ranks, host)
        for scenario in module.SCENARIOS
        if scenario.name
        in (
            "a rank killed at a random moment",
            "a rank meets its memory limit",
            "the clock set back",
        )
    ],
    ids=lambda scenario: scenario.name,
)
def test_a_fault_is_survived(scenario: Scenario) -> None:
    problems = [one.problem for one in scenario.run(1)]
    assert problems == [None] * len(problems)
    assert problems


def test_a_power_cut_in_the_middle_of_a_record_loses_only_that_one() -> None:
    assert {one.problem for one in disk.power_cut(1, every=41)} == {None}


def pretend(*tries: Try) -> Scenario:
    def run(count: int) -> Iterator[Try]:
        yield from tries[:count]

    return Scenario(name="a pretended fault", promise="nothing", tries=len(tries), run=run)


def test_what_held_is_counted_and_what_did_not_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Try(expect(it_held=False), 2.0)
    monkeypatch.setattr(faults, "SCENARIOS", (pretend(Try(None, 1.5), bad, bad),))
    assert faults.main([]) == 1
    out = capsys.readouterr().out
    assert "a pretended fault: 1 of 3 held (nothing), after 2.00 s at the latest" in out
    assert "  2 × not so: it held" in out
    assert faults.main(["pretended", "--tries", "1"]) == 0


def test_what_cannot_be_tried_is_told_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(tries: int) -> Iterator[Try]:
        raise CannotTry("mounting needs root")
        yield

    monkeypatch.setattr(
        faults, "SCENARIOS", (Scenario(name="a mount", promise="", tries=1, run=run),)
    )
    assert faults.main([]) == 0
    assert "a mount: not tried here: mounting needs root" in capsys.readouterr().out


def test_an_unknown_word_is_a_usage_error() -> None:
    with pytest.raises(SystemExit, match="2"):
        faults.main(["earthquake"])
