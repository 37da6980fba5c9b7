"""Projections as text, as JSON and as a chart."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from dpbench.analysis.projection.iso import IsoRow, families
from dpbench.analysis.projection.project import assumptions, project
from dpbench.analysis.projection.series import series_of
from dpbench.analysis.projection.what_if import parse_change, what_if
from dpbench.analysis.summary import summarize
from dpbench.report.prediction import iso, projection
from dpbench.report.prediction import what_if as what_if_report
from dpbench.report.prediction.projection import Projection
from tests.analysis.projection.models import given_network, measured_network, series, swept

SIZES = (1, 2, 8, 64, 1000, 10_000)


def projected(**changes: object) -> Projection:
    one = series(**changes)
    return Projection(
        series=one,
        rows=project(one, SIZES),
        assumptions=assumptions(one, SIZES[-1], "a machine"),
        notes=("a note of the series",),
    )


def given_one() -> Projection:
    return projected(network_of=given_network, network_is_given=True, replicas_per_node=8)


def test_speeds_of_several_items_have_their_units() -> None:
    """As the header of the summary cannot say which series counts tokens."""
    images = projected()
    rows = [
        replace(row, throughput=row.throughput and row.throughput.scaled(1, unit="tokens/s"))
        for row in images.rows
    ]
    counted = replace(images.series, item="tokens")
    tokens = replace(images, series=counted, rows=tuple(rows))
    text = projection.answer([images, tokens], verbose=False).text
    assert "tokens/s" in text
    assert "images/s" in text
    assert "tokens/s" not in projection.answer([tokens], verbose=False).text


def test_every_row_has_its_kind_and_refused_ones_share_a_reason() -> None:
    text = projection.answer([projected()], notes=["a note"]).text
    lines = text.splitlines()
    assert lines[0] == "ddp/gloo, batch 32, on gloo as measured"
    kinds = [line.split()[-1] for line in lines[4:10]]
    assert kinds == ["measured", "measured", "extrapolated", "refused", "refused", "refused"]
    assert "refused, 64, 1,000, 10,000 replicas: the largest group measured is 2" in text
    assert "· a note of the series" in text
    assert "· a note\n\nAssumed\n" in text


def test_the_simulated_step_stands_beside_the_measured_one_with_its_error() -> None:
    text = projection.answer([projected()]).text
    row = text.splitlines()[5]
    assert row.split()[1:5] == ["20.000", "±", "0", "ms"]
    assert row.split()[-2:] == ["3", "measured"]
    [beside] = [line for line in text.splitlines() if " %)" in line and line.split()[0] == "2"]
    assert re.search(r" ms \([+-]\d+ %\)", beside)


def test_no_line_is_wider_than_100_columns() -> None:
    for one in (projected(), given_one()):
        assert max(map(len, projection.answer([one]).text.splitlines())) <= 100


def test_what_all_series_assume_stands_once() -> None:
    text = projection.answer([projected(), projected()]).text
    assert text.count("gradients of 8 MiB travel") == 1


def test_json_has_unit_ends_and_kind_of_every_number() -> None:
    content = json.loads(projection.answer([given_one()], notes=["a note"]).json)
    assert content["notes"] == ["a note"]
    [one] = content["series"]
    alone, *others = one["rows"]
    assert (alone["kind"], alone["efficiency"]["value"]) == ("measured", 1)
    for row in others:
        assert row["kind"] == "projected"
        for name in ("step_seconds", "items_per_second", "efficiency"):
            number = row[name]
            assert number["low"] <= number["value"] <= number["high"]
            assert number["unit"]
            assert number["kind"] == "projected"
        assert row["simulated"]["step_seconds"] == row["step_seconds"]


def test_what_is_simulated_beside_a_measured_step_is_not_called_measured() -> None:
    rows = json.loads(projection.answer([projected()]).json)["series"][0]["rows"]
    measured = rows[1]
    assert (measured["group_size"], measured["kind"]) == (2, "measured")
    assert measured["step_seconds"]["kind"] == "measured"
    assert measured["straggler_seconds"]["kind"] == "interpolated"


def test_refused_rows_have_no_numbers_in_json() -> None:
    content = json.loads(projection.answer([projected()]).json)
    last = content["series"][0]["rows"][-1]
    assert last["step_seconds"] is last["items_per_second"] is last["efficiency"] is None
    assert "--topology" in last["reason"]


def test_iso_answers_with_a_batch_none_or_a_reason() -> None:
    rows = (
        IsoRow(group_size=8, kind="projected", batch_size=1140, low=95),
        IsoRow(group_size=64, kind="projected", reason="not with any batch up to 256"),
        IsoRow(group_size=1000, kind="refused", reason="no network"),
    )
    records = swept((16, 64))
    members, _ = series_of(records, summarize(records), network_of=measured_network)
    (family,) = families(members)
    answer = iso.IsoAnswer(
        family=family,
        rows=rows,
        assumptions=(
            ("ddp/gloo, batch 16", ("so it is", "small")),
            ("ddp/gloo, batch 64", ("so it is", "large")),
        ),
    )
    text = iso.answer([answer], 0.9, notes=["a note"]).text
    cells = [line.split("  ")[-2].strip() for line in text.splitlines()[4:7]]
    assert cells == ["1,140 (95 to –)", "none", "–"]
    assert "ddp/gloo, 64 replicas: not with any batch up to 256" in text
    assert "ddp/gloo, on gloo as measured: 90 % efficiency (n = 3)" in text
    assert "Assumed\n· so it is\n\nAssumed of ddp/gloo, batch 16\n· small\n" in text
    assert max(map(len, text.splitlines())) <= 100
    content = json.loads(iso.answer([answer], 0.9).json)
    assert content["series"][0]["rows"][0]["high"] is None


def test_changes_stand_below_the_step_as_it_is() -> None:
    one = series()
    changes = [parse_change(text) for text in ("bandwidth=2", "gradients=bf16")]
    answers = what_if_report.Answers(
        series=one,
        found=what_if(one, [2, 8, 64], changes),
        assumptions=("so it is",),
    )
    text = what_if_report.answer([answers], notes=["a note"]).text
    lines = text.splitlines()
    assert lines[0].startswith("ddp/gloo, batch 32, on gloo as measured, 2 replicas (interpolated")
    assert lines[1].startswith("as is, ")
    assert [line.split("  ")[0] for line in lines[5:8]] == [
        "as is",
        "bandwidth=2",
        "gradients=bf16",
    ]
    assert "8 replicas (extrapolated, n = 3)" in text
    assert "64 replicas: the largest group measured is 2" in text
    assert max(map(len, lines)) <= 100
    content = json.loads(what_if_report.answer([answers]).json)
    ratio = content["series"][0]["group_sizes"][0]["changes"][1]["ratio"]
    assert ratio["low"] <= ratio["value"] <= ratio["high"]


def test_a_change_without_effect_has_no_interval_of_nothing() -> None:
    one = series()
    answers = what_if_report.Answers(
        series=one,
        found=what_if(one, [1], [parse_change("bandwidth=2")]),
        assumptions=(),
    )
    text = what_if_report.answer([answers]).text
    assert "1 replica (" in text
    changed = next(line for line in text.splitlines() if line.startswith("bandwidth=2"))
    assert changed.split()[-1] == "1.000"
