"""Tables against golden files, every format, and what stands below."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.analysis.levels import COLUMNS, LEVELS, configuration_row
from dpbench.analysis.published import from_csv
from dpbench.analysis.summary import summarize
from dpbench.errors import UnknownName
from dpbench.records.trial import Status
from dpbench.report.export.formats import write_csv
from dpbench.report.tables import DEFAULT_COLUMNS, render
from dpbench.report.terminal import FORMATS
from tests.analysis.builders import rank, record, run, trial, window
from tests.report.sample import sample_records

GOLDEN = Path(__file__).parent / "golden"
PUBLISHED = Path(__file__).parents[2] / "results" / "published"
REQUIRED = """implementation backend group_size batch_size global_batch_size images_per_second
images_per_second_low images_per_second_high speedup absolute_speedup efficiency
exposed_communication_seconds loss_delta_per_step loss_delta_per_second final_loss
peak_memory_bytes step_seconds_p50 step_seconds_p95 repetitions timed_steps status reason
verified"""


@pytest.mark.parametrize("name", ["torch_ddp_rtx3090", "tabtune_tabicl"])
def test_published_tables(name: str) -> None:
    text = render(from_csv(PUBLISHED / f"{name}.csv")).text
    assert text == (GOLDEN / f"{name}.txt").read_text()


EVIL = "@channel <img src=x onerror=alert(1)> [a](javascript:b) | `c` *d* =e"


def test_nothing_beside_a_markdown_table_is_markup() -> None:
    failed = record(trial("ddp"), status=Status.FAILED, reason=EVIL)
    text = render(summarize([failed]), format="markdown", notes=[EVIL]).text
    _, below = text.split("\n\n", 1)
    assert all(line.startswith("- ") for line in below.splitlines())
    assert below.count("onerror=alert") == 2
    plain = text.replace("\\<", "").replace("\\]", "").replace("\\`", "").replace("\\*", "")
    for markup in ("<img", "](", "`c", "*d", "@channel"):
        assert markup not in plain


def test_no_text_in_a_csv_file_is_a_formula_and_negative_numbers_stay_numbers() -> None:
    for reason in ("=cmd|' /C calc'!A0", "+1+2", "-2+3", "@SUM(A1)", "\t=1", "plain"):
        failed = record(trial("ddp"), status=Status.FAILED, reason=reason)
        (line,) = csv.DictReader(io.StringIO(render(summarize([failed]), format="csv").text))
        assert line["reason"] == (reason if reason == "plain" else f"'{reason}")
    text = io.StringIO()
    write_csv(text, ["a", "b", "c"], [{"a": -1.5, "b": "-1.5e3", "c": float("-inf")}])
    assert text.getvalue() == "a,b,c\n-1.5,-1.5e3,-inf\n"


def test_seed_table() -> None:
    text = render(from_csv(PUBLISHED / "torch_ddp_rtx3090.csv"), columns="seed").text
    assert text == (GOLDEN / "seed.txt").read_text()


def test_measured_table() -> None:
    text = render(summarize(sample_records())).text
    assert text == (GOLDEN / "measured.txt").read_text()


def test_table_of_single_repetitions() -> None:
    text = render(summarize(sample_records(repetitions=1))).text
    assert text == (GOLDEN / "single_repetition.txt").read_text()


def test_a_table_fits_the_terminal_where_it_can() -> None:
    for line in render(summarize(sample_records()), width=145).text.splitlines():
        assert len(line) <= 145


def test_without_a_terminal_every_header_is_on_one_line() -> None:
    header = render(summarize(sample_records())).text.splitlines()[0]
    assert "Exposed comm" in header
    assert "Loss/s" in header


def test_default_columns_are_in_the_agreed_order() -> None:
    assert [column.header for column in DEFAULT_COLUMNS if column.shown == "always"] == [
        "Implementation",
        "Backend",
        "Group",
        "Batch",
        "{Item}/s",
        "Speedup",
        "Efficiency",
        "Exposed comm",
        "Loss/s",
        "Final loss",
        "Peak memory",
        "Status",
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_renders(name: str) -> None:
    rows = summarize(sample_records())
    assert "torch-ddp" in render(rows, format=name).text
    assert "torch-ddp" not in render((), format=name).text
    assert "gloo" in render(rows, format=name, columns="seed").text


def test_outliers_are_told_below() -> None:
    steps = [0.099, 0.1, 0.101] * 4 + [0.41]
    spec = trial(timed_steps=len(steps))
    below = render(summarize([record(spec, [rank(0, window(steps, 416))])])).text
    text = " ".join(below.split())
    assert "ddp/gloo ×1, batch 32: 1 of 13, up to 4.1 × the median" in text
    columns = "outliers,steady,step_seconds_p99,rank_skew,slowest_rank"
    rows = render(summarize(sample_records()), columns=columns).text.splitlines()
    assert rows[0].split()[:5] == ["Implementation", "Backend", "Group", "Batch", "Outliers"]
    one, two = rows[2].split()[4:], rows[4].split()[4:]
    assert one[:4] == ["0", "of", "150", "steady"]
    assert one[-2:] == ["–", "–"]
    assert two[-1] in ("0", "1")


def test_markup_has_its_notes_aside() -> None:
    rows = summarize(sample_records())
    html = render(rows, format="html")
    assert html.text.rstrip().endswith("</table>")
    assert any("interval" in note for note in html.notes_aside)
    assert render(rows, format="text").notes_aside == ()


def test_markdown_is_a_table_of_single_lines() -> None:
    lines = render(summarize(sample_records()), format="markdown").text.splitlines()
    table = lines[: lines.index("")]
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in table]
    assert {*bars} == {bars[0]}
    assert "Loss/s" in table[0]
    assert any("rank 1 ended with signal 9 last \\| words |" in line for line in table)


def test_a_table_without_rows_is_a_sentence() -> None:
    assert render((), width=80, notes=["a note"]).text == (
        "No rows: nothing has been measured.\n\n· a note\n"
    )


def test_json_rows_have_exactly_the_keys() -> None:
    rows = json.loads(render(summarize(sample_records()), format="json").text)
    assert set(REQUIRED.split()) <= {field.key for field in LEVELS["configuration"]}
    assert all(list(row) == [field.key for field in LEVELS["configuration"]] for row in rows)
    assert {row["unit"] for row in rows} == {"images/s"}
    failed = next(row for row in rows if row["status"] == "failed")
    assert failed["reason"].startswith("1 of 3 repetitions failed: rank 1")
    assert failed["repetitions"] == 2


def test_csv_has_the_same_keys() -> None:
    rows = list(csv.DictReader(io.StringIO(render(summarize(sample_records()), format="csv").text)))
    assert list(rows[0]) == [field.key for field in LEVELS["configuration"]]
    assert float(rows[0]["images_per_second"]) > 0


def test_columns_that_were_asked_for() -> None:
    rows = summarize(sample_records())
    text = render(rows, columns="implementation,absolute_speedup,verified").text
    assert text.splitlines()[0].split("  ") == ["Implementation", "Absolute speedup", "Verified"]
    only = json.loads(render(rows, columns="speedup,status", format="json").text)
    assert list(only[0]) == ["speedup", "status"]


def test_formats_for_programs_take_every_key_as_a_column() -> None:
    rows = summarize(sample_records())
    text = render(rows, columns="images_per_second_low,reason", format="csv").text
    assert text.splitlines()[0] == "images_per_second_low,reason"


def test_a_caption_says_what_plus_minus_is() -> None:
    rows = summarize(sample_records())
    html = render(rows, format="html", caption="demo").text
    assert "<caption>demo; ± is the 95 % interval over 2–3 repetitions" in html


def test_every_column_can_be_written() -> None:
    assert render(summarize(sample_records()), columns=",".join(COLUMNS)).text


def test_unknown_names_are_errors() -> None:
    with pytest.raises(UnknownName, match="unknown format 'tabel'"):
        render((), format="tabel")
    with pytest.raises(UnknownName, match=r"unknown column 'speedups'\. Did you mean 'speedup'"):
        render((), columns="speedups")


def test_the_item_names_the_header() -> None:
    rows = summarize([run(trial(), 100.0, item="tokens")])
    assert "Tokens/s" in render(rows).text
    mixed = (*rows, *(replace(row, item="images", group_size=2) for row in rows))
    assert "Items/s" in render(mixed).text


def test_speeds_of_several_items_have_their_units() -> None:
    """As the header cannot say which row counts tokens."""
    rows = [
        *summarize([run(trial(), 100.0, item="tokens")]),
        *summarize([run(trial(group_size=2), 200.0, item="images")]),
    ]
    text = render(rows).text
    assert "100.0 tokens/s" in text
    assert "200.0 images/s" in text
    assert "tokens/s" not in render(rows[:1]).text


def test_speedups_that_may_be_none_are_named() -> None:
    runs = [
        run(trial(group_size=n, repetition=r), speed)
        for n, speeds in ((1, (100.0, 140.0, 90.0)), (2, (120.0, 80.0, 150.0)))
        for r, speed in enumerate(speeds)
    ]
    text = render(summarize(runs)).text
    assert "the interval contains 1): ddp/gloo ×2, batch 32" in text


def test_local_sgd_is_marked_as_another_optimisation() -> None:
    runs = [run(trial("local-sgd"), 100.0)]
    words = "averages parameters every"
    assert words not in render(summarize(runs)).text
    runs.append(run(trial("local-sgd", "gloo", sync_every=4), 120.0))
    text = render(summarize(runs)).text
    assert f"local-sgd(4) {words} 4 steps, gradients never: another optimisation than ddp" in text


def test_a_scaled_learning_rate_stands_in_the_row_with_its_rule() -> None:
    """0.01 for one replica's batch: 0.0141 by the root, and 0.02 in proportion, for two."""
    plain = render(summarize([run(trial(group_size=2), 100.0)]), columns="learning_rate")
    assert "0.01" in plain.text
    assert "rule" not in plain.text
    for rule, words in (("sqrt", "0.0141421 (sqrt)"), ("linear", "0.02 (linear)")):
        workload = replace(trial().workload, learning_rate_rule=rule)
        rows = summarize([run(trial(group_size=n, workload=workload), 100.0) for n in (1, 2)])
        text = render(rows, columns="learning_rate").text
        assert words in text
        assert f"learning rates of 0.01 to {words.split()[0]} follow the samples" in text
        assert [configuration_row(row)["learning_rate_rule"] for row in rows] == [rule, rule]


def test_seed_columns_say_what_they_cannot_show() -> None:
    table = render(summarize(sample_records()), columns="seed")
    assert any("does not show the implementation" in note for note in table.notes_aside)


def test_control_characters_do_not_reach_the_table() -> None:
    rows = summarize([run(trial(), 100.0)])
    (row,) = (replace(row, reason="a\x1b[31m\nb\tc") for row in rows)
    text = render([row]).text
    assert "\x1b" not in text
    assert "a [31m b c" in text
