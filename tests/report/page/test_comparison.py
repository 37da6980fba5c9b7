"""Sweeps beside each other: shared configurations with their ratio, and what differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.analysis.subject import Subject, of_folder, of_published
from dpbench.records.environment import Environment, capture
from dpbench.report.page.comparison import comparison
from dpbench.report.page.content import Section, Table
from dpbench.store import StoredCollectives
from tests.analysis.builders import record, run, trial
from tests.report.sample import subject
from tests.report.test_collectives import sample as sample_collectives

HERE = capture()
PUBLISHED = Path(__file__).parents[3] / "results" / "published"


def sweep(name: str, factor: float, *, environment: Environment = HERE, **spec: object) -> Subject:
    place = environment.environment_id
    records = [
        run(trial("ddp", "gloo", n, repetition=k), 100.0 * n * factor + k, environment_id=place)
        for k in range(3)
        for n in (1, 2)
    ]
    return subject(records, name=name, environments={place: environment}, **spec)


def table(section: Section, key: str) -> Table:
    return next(table for table in section.tables if table.key == key)


def row(found: Table, first: str) -> list[str]:
    return next([c.text for c in row.cells] for row in found.rows if row.cells[0].text == first)


def test_shared_configurations_have_their_speeds_and_the_slow_down() -> None:
    shared = table(comparison([sweep("before", 1.0), sweep("after", 0.5)]), "shared")
    assert [column.header for column in shared.columns] == [
        "Configuration",
        "before (images/s)",
        "after (images/s)",
        "Slow-down of after",
        "after is",
    ]
    _, before, after, ratio, verdict = row(shared, "ddp/gloo ×2, batch 32")
    assert (before, after) == ("201 ± 2", "101 ± 3")
    # 201 ÷ 101 = 1.990 of the geometric means
    assert ratio.startswith("1.99 ± 0.0")
    assert verdict == "slower"


def test_sweeps_of_one_name_are_both_there() -> None:
    shared = table(comparison([sweep("same", 1.0), sweep("same", 0.5)]), "shared")
    assert row(shared, "ddp/gloo ×2, batch 32")[1:3] == ["201 ± 2", "101 ± 3"]


def test_one_beside_two_others_has_a_ratio_for_each() -> None:
    section = comparison([sweep("a", 1.0), sweep("b", 0.5), sweep("c", 2.0)])
    headers = [column.header for column in table(section, "shared").columns]
    assert headers[4:] == ["Slow-down of b", "b is", "Slow-down of c", "c is"]
    assert row(table(section, "shared"), "ddp/gloo ×1, batch 32")[5:][-1] == "faster"


def test_other_machines_have_no_ratio_and_the_reason() -> None:
    there = replace(HERE, cpu="another one")
    section = comparison([sweep("here", 1.0), sweep("there", 0.5, environment=there)])
    assert len(table(section, "shared").columns) == 3
    assert any("as environments differ: cpu: " in note for note in section.notes)
    assert row(table(section, "differences"), "CPU") == ["CPU", HERE.cpu, "another one"]


def test_what_differs_is_listed_and_what_is_alike_is_not() -> None:
    section = comparison([sweep("a", 1.0), sweep("b", 1.0, timed_steps=7)])
    names = [line.cells[0].text for line in table(section, "differences").rows]
    assert names == ["Measured"]


def test_sweeps_with_nothing_in_common_say_so() -> None:
    other = subject([run(trial("torch-ddp", batch_size=64), 100.0)], name="other")
    section = comparison([sweep("a", 1.0), other])
    assert "shared" not in [table.key for table in section.tables]
    assert any("no configuration is in both a and other" in note for note in section.notes)


def test_published_numbers_stand_beside_the_fastest_of_the_sweep() -> None:
    published = of_published(PUBLISHED / "torch_ddp_rtx3090.csv")
    section = comparison([sweep("ours", 1.0), published])
    beside = table(section, "by-work")
    assert [cell.text for cell in beside.rows[0].cells] == [
        "gloo",
        "1",
        "32",
        "101 ± 3 images/s (ddp)",
        "1,724.4 images/s (published)",
    ]
    assert any("and they have no ratio" in note for note in section.notes)
    assert any("equal sizes need not be equal work" in note for note in section.notes)
    unknown = table(section, "differences")
    assert [line.cells[0].text for line in unknown.rows] == ["Workload", "CPU", "GPUs"]
    assert row(unknown, "CPU") == ["CPU", HERE.cpu, "not recorded"]


def test_published_tables_share_no_configuration_by_their_labels() -> None:
    names = ("tabtune_tabicl.csv", "tabtune_typical_speedups.csv")
    section = comparison([of_published(PUBLISHED / name) for name in names])
    assert "shared" not in [table.key for table in section.tables]


def test_a_failure_stands_beside_the_speed_and_failures_alone_are_no_row() -> None:
    broken = [record(trial("ddp", "gloo", n), reason="rank 0 ended") for n in (1, 4)]
    section = comparison([sweep("before", 1.0), subject(broken, name="after")])
    shared = table(section, "shared")
    assert [line.cells[0].text for line in shared.rows] == ["ddp/gloo ×1, batch 32"]
    assert shared.rows[0].cells[2].text == "failed"


def test_what_was_not_measured_does_not_differ() -> None:
    environment = {HERE.environment_id: HERE}
    links = of_folder(
        None,
        StoredCollectives(
            folder=Path("links"),
            command=("comm",),
            environments=environment,
            records=tuple(
                replace(one, environment_id=HERE.environment_id) for one in sample_collectives()
            ),
            warnings=(),
        ),
    )
    assert "differences" not in [t.key for t in comparison([sweep("a", 1.0), links]).tables]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_empty_sweep_may_stand_beside_another(order: tuple[int, int]) -> None:
    both = [sweep("full", 1.0), subject([], name="empty")]
    section = comparison([both[place] for place in order])
    assert "shared" not in [table.key for table in section.tables]
