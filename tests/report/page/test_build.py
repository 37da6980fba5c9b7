"""What the page says of sweeps of every kind: whole, empty, failed, running, hostile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.analysis.levels import COLUMNS
from dpbench.analysis.published import from_csv
from dpbench.analysis.subject import Subject, of_folder, of_published
from dpbench.analysis.summary import summarize
from dpbench.records.environment import SYNTHETIC, Accelerator, capture
from dpbench.records.trial import Status
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.page.build import build_page, empty_columns, failures_table, results_table
from dpbench.report.page.content import Section, SweepContent, Table
from dpbench.report.page.html import to_html
from dpbench.report.page.pictures import Pictures, without
from dpbench.report.tables import render
from dpbench.store import StoredCollectives
from tests.analysis.builders import WRONG, record, run, trial
from tests.report.sample import sample_records, subject
from tests.report.test_collectives import sample as sample_collectives

PUBLISHED = Path(__file__).parents[3] / "results" / "published"


def content(one: Subject) -> SweepContent:
    return build_page(one, without("as was asked for")).sweep


def section(page: SweepContent, key: str) -> Section:
    return next(section for section in page.sections if section.key == key)


@pytest.fixture(scope="module")
def whole() -> SweepContent:
    return content(subject(sample_records(), command=["sweep", "--name", "demo", "--gpus", "2"]))


def test_findings_come_first_with_the_proof_of_the_gradients(whole: SweepContent) -> None:
    assert [one.title for one in whole.findings] == [
        "Fastest",
        "Best scaling",
        "What limits it",
        "Gradients verified",
    ]
    # 18 rows completed, one of which failed in a repetition; torch-dp's gradients were wrong.
    assert whole.findings[-1].value == "18 of 19 configurations"
    assert "1e-12, 1e-06 is allowed" in whole.findings[-1].about


def test_warnings_name_wrong_gradients(whole: SweepContent) -> None:
    assert whole.warnings[0] == (
        "wrong gradients, so their speeds do not count: torch-dp ×1, batch 32"
    )


def test_the_command_makes_a_new_folder(whole: SweepContent) -> None:
    assert whole.command == "dpbench sweep --name demo-again --gpus 2"


def test_reasons_stand_in_their_table_and_not_in_the_notes(whole: SweepContent) -> None:
    assert whole.failures is not None
    assert len(whole.failures.rows) == 4
    assert not any("signal 9" in note for note in whole.notes)
    assert whole.notes[0] == "charts are left out: as was asked for"
    assert any(note.startswith("± is the 95 % interval") for note in whole.notes)


def test_where_the_time_goes_has_factors_steps_and_advice(whole: SweepContent) -> None:
    time = section(whole, "time")
    assert [table.key for table in time.tables] == ["advice", "factors", "steps"]
    advice, factors, _ = time.tables
    assert [cell.text for cell in advice.rows[0].cells] == [
        "torch-ddp/gloo ×2, batch 32",
        "18.8 ± 1.0 %",
        "exposed communication on gloo",
        "try shm (same host), or --accumulate 4",
    ]
    costs = [row.cells[1].sort for row in advice.rows]
    assert costs == sorted(costs, reverse=True)
    assert [column.header for column in factors.columns][:3] == [
        "Configuration",
        "Efficiency",
        "Absolute efficiency",
    ]


def test_of_a_cost_model_no_gradients_are_called_right() -> None:
    model = {"e0": replace(capture(), launcher=SYNTHETIC)}
    page = content(subject([run(trial(), 100.0)], environments=model))
    assert page.findings[-1].value == "not checked"
    assert "nothing was run, and nothing compared" in page.findings[-1].about


def test_charts_of_questions_without_a_section_are_one_line_at_the_end() -> None:
    kinds = [CHARTS[name] for name in ("throughput", "speedup", "loss")]
    absent = Pictures(absent=tuple((kind, "no speed") for kind in kinds))
    one = subject([record(trial(), status=Status.FAILED, reason="rank 0 ended")])
    page = build_page(one, absent).sweep
    assert page.sections == ()
    titles = ", ".join(f"“{kind.title}”" for kind in kinds)
    assert page.not_drawn == f"Not drawn: {titles} (no speed)."
    assert to_html(build_page(one, absent)).count(kinds[0].title) == 1


def test_a_section_names_the_charts_that_it_lacks() -> None:
    kind = next(kind for kind in CHARTS.values() if kind.section == "time")
    lacking = Pictures(absent=((kind, "no step times"),))
    page = build_page(subject(sample_records()), lacking).sweep
    assert f"no chart “{kind.title}”: no step times" in section(page, "time").notes
    assert page.not_drawn is None


def test_gradients_that_nobody_compared_are_not_called_wrong() -> None:
    page = content(subject([run(trial(), 100.0, verification=None)]))
    proved = page.findings[-1]
    assert (proved.title, proved.value) == ("Gradients verified", "not checked")
    assert proved.about == "no record has a comparison with one process"


def test_a_sweep_without_any_trial_is_a_page_that_says_so() -> None:
    page = content(replace(subject([]), planned=12))
    assert page.state.startswith("0 of 12 trials; the rest was not run")
    assert page.started is None
    assert page.findings[0].about == "no trial was recorded"
    assert page.results.rows == ()
    assert page.failures is None
    assert page.sections == ()


def test_only_failures_have_no_numbers_but_reasons() -> None:
    reason = "rank 0 ended with signal 9"
    page = content(subject([record(trial(), status=Status.FAILED, reason=reason)]))
    assert page.findings[0].value == "not known"
    assert page.failures is not None
    assert page.failures.rows[0].cells[-1].text == reason
    assert page.sections == ()


def test_one_group_size_says_why_there_is_no_speedup() -> None:
    page = content(subject([run(trial(repetition=k), 100.0 + k) for k in range(3)]))
    assert page.findings[1].about.startswith("one group size was measured (1)")


def test_collectives_alone_have_a_page() -> None:
    stored = StoredCollectives(
        folder=Path("links"),
        command=("comm", "--backends", "gloo"),
        environments={},
        records=tuple(sample_collectives()),
        warnings=("the last line is cut off",),
    )
    page = content(of_folder(None, stored))
    assert page.state == f"{len(stored.records)} measurements of collectives"
    assert page.findings == ()
    assert page.warnings == ("the last line is cut off",)
    assert page.command == "dpbench comm --backends gloo"
    (communication,) = page.sections
    assert communication.tables[0].rows[0].cells[0].text == "all_reduce"


def test_published_numbers_have_a_page() -> None:
    page = content(of_published(PUBLISHED / "torch_ddp_rtx3090.csv"))
    assert page.state == "16 published rows"
    assert page.command == ""
    assert page.environment == (
        ("Source", "torch_ddp_rtx3090.csv: published numbers, not measured here"),
    )
    assert len(page.findings) == 3
    assert len(page.results.rows) == len(from_csv(PUBLISHED / "torch_ddp_rtx3090.csv"))


def test_all_numbers_of_steps_and_threads_are_told() -> None:
    one = subject(
        [run(trial(), 100.0)],
        warmup_steps=1,
        timed_steps=4,
        threads_per_replica=1,
        repetitions=2,
        axes={"timed_steps": (4, 8), "threads_per_replica": (1, 2)},
    )
    page = content(one)
    assert (
        "Measured",
        "4 or 8 timed steps after 1 of warmup, 2 repetitions, each in fresh processes",
    ) in page.environment
    assert ("Threads", "1 or 2 a replica") in page.environment


HOSTILE = "</td><script>alert(1)</script>\x1b[31m../../etc\u202epasswd\x00\ud800"


def test_hostile_names_end_up_as_text() -> None:
    named = {"hostname": HOSTILE, "cpu": HOSTILE, "variables": ((HOSTILE, HOSTILE),)}
    environment = replace(capture(), **named)  # type: ignore[arg-type]
    records = [
        run(trial(devices=(HOSTILE,)), 100.0, item=HOSTILE),
        record(trial("torch-ddp"), status=Status.FAILED, reason=HOSTILE),
        run(trial("ddp", "shm"), 90.0, verification=replace(WRONG, worst_parameter=HOSTILE)),
    ]
    one = subject(
        records,
        name="<script>alert(1)<",
        command=["sweep", "--name", HOSTILE],
        environments={"e0": environment, HOSTILE: environment},
    )
    text = to_html(build_page(one, without("as was asked for")))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert not {"\x1b", "\x00", "\u202e", "\ud800"} & set(text)


def test_trials_from_several_environments_say_what_differs() -> None:
    here = capture()
    there = replace(here, cpu="another one")
    records = [
        run(trial(repetition=0), 100.0, environment_id="a"),
        run(trial(repetition=1), 101.0, environment_id="a"),
        run(trial(repetition=2), 99.0, environment_id="b"),
    ]
    page = content(subject(records, environments={"a": here, "b": there}))
    assert ("CPU", here.cpu) in page.environment
    assert any(name == "Other records are from" for name, _ in page.environment)
    assert any("trials come from 2 environments" in warning for warning in page.warnings)


def test_every_other_environment_is_told_of() -> None:
    here = capture()
    environments = {"a": here, "b": replace(here, cpu="second"), "c": replace(here, cpu="third")}
    records = [
        run(trial(repetition=k), 100.0 + k, environment_id=place) for k, place in enumerate("aabc")
    ]
    facts = content(subject(records, environments=environments)).environment
    assert [value for name, value in facts if name == "Other records are from"] == [
        f"cpu: {here.cpu!r} -> 'second' | cpu: {here.cpu!r} -> 'third'"
    ]


def test_the_ways_between_gpus_are_a_fact_of_the_machine() -> None:
    ways = (("X", "NVLink"), ("NVLink", "X"))
    gpus = tuple(
        Accelerator(index=index, name="H200", memory_bytes=2**37, links=ways[index])
        for index in (0, 1)
    )
    machine = replace(capture(), accelerators=gpus)
    facts = dict(content(subject([run(trial(), 100.0)], environments={"e0": machine})).environment)
    assert facts["Way from each GPU to each"] == "0: X NVLink; 1: NVLink X"
    alone = replace(machine, accelerators=(replace(gpus[0], links=()),))
    facts = dict(content(subject([run(trial(), 100.0)], environments={"e0": alone})).environment)
    assert "Way from each GPU to each" not in facts


ROWS = summarize(sample_records())
TABLE = results_table(ROWS)


def texts(table: Table, key: str) -> list[str]:
    place = [column.key for column in table.columns].index(key)
    return [row.cells[place].text for row in table.rows]


def test_all_columns_are_there_and_the_usual_ones_are_shown() -> None:
    keys = [column.key for column in TABLE.columns]
    assert sorted(keys) == sorted(COLUMNS)
    assert keys[keys.index("efficiency") + 1] == "status"
    assert [key for key in keys if key != "status"] == [*COLUMNS][:-1]
    shown = {column.key for column in TABLE.columns if column.shown}
    usual = {column.key for column in COLUMNS.values() if column.shown != "on request"}
    assert "loss_slope_per_second" in shown
    assert not shown & {"loss_delta_per_step", "loss_slope_per_step"}
    assert shown == usual - {"duration_seconds", "time_to_loss_seconds"} - {
        "final_loss_over_seeds",
        "time_to_loss_over_seeds_seconds",
        "mfu",
        "joules_per_item",
    }
    assert all(column.meaning for column in TABLE.columns)


def test_a_status_is_a_word_and_its_reason_stands_elsewhere() -> None:
    rows = summarize([record(trial(), status=Status.FAILED, reason="out of memory " * 9)])
    assert texts(results_table(rows), "status") == ["failed"]


def test_sorting_goes_by_the_values_of_the_json_rows() -> None:
    rows = json.loads(render(ROWS, format="json").text)
    for place, column in enumerate(TABLE.columns):
        for shown, row in zip(TABLE.rows, rows, strict=True):
            value = row[column.key]
            if isinstance(value, bool):
                value = "yes" if value else "no"
            assert shown.cells[place].sort == value, column.key


def test_claims_stand_last() -> None:
    table = results_table(from_csv(PUBLISHED / "tabtune_tabicl.csv"))
    claimed = table.columns[-1]
    assert claimed.header.endswith("(claimed)")
    assert "not measured here" in claimed.meaning


def test_a_usual_column_without_any_value_is_hidden_and_named() -> None:
    table = results_table(summarize([run(trial(), 100.0)]))
    assert empty_columns(table) == ("Exposed comm",)
    assert empty_columns(results_table(())) == ()


def test_failures_have_their_whole_reason() -> None:
    reason = "rank 1 ended with signal 9: " + "out of something, " * 20
    table = failures_table(
        summarize(
            [
                record(trial(), status=Status.FAILED, reason=f"{reason}\n\x1b[31mred"),
                run(trial("torch-ddp"), 100.0),
                record(trial("torch-ddp", repetition=1), status=Status.TIMED_OUT, reason="late"),
            ]
        )
    )
    assert table is not None
    ((label, status, _, cause), (_, ended, repetitions, share)) = (r.cells for r in table.rows)
    assert (label.text, status.text) == ("ddp/gloo ×1, batch 32", "failed")
    assert cause.text == " ".join(f"{reason} [31mred".split())
    assert (ended.text, repetitions.sort) == ("timed out", 1.0)
    assert share.text == "1 of 2 repetitions timed out: late"
    assert [row.status for row in table.rows] == ["failed", "timed_out"]


def test_without_failures_there_is_no_table_of_them() -> None:
    assert failures_table(summarize([run(trial(), 100.0)])) is None
