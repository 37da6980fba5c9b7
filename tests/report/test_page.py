"""The page: what it says, that all text stays text, and that it needs nothing from elsewhere."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dpbench.analysis.analyze import analyze, read_results
from dpbench.analysis.rows import published_rows, summarize
from dpbench.codec import content_hash
from dpbench.errors import FileError
from dpbench.launch.cluster import Node
from dpbench.options.reading import read_options
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status
from dpbench.report.charts.figures import house_style, inline_svg
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.commands import command_to_measure
from dpbench.report.configurations import configurations_table, rows_text
from dpbench.report.page import page_text, write_page
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.specs import Configuration
from dpbench.specs.command_line import CommandLine
from tests.analysis.builders import record, run, stored, trial
from tests.analysis.collective_records import sample_collectives
from tests.builders import MACHINE, sweep_spec
from tests.report.charts.pictured import figure
from tests.report.pages import Seen, whole
from tests.report.sample import analysis, sample_records, stored_collectives

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
HOSTILE = "<script>alert(1)</script>&\x1b[31m\u202e\" onload='x"
ROWS = summarize(sample_records())


def titles(page: str) -> list[str]:
    return re.findall("<h2>(.+?)</h2>", page)


def charts_of(page: str) -> list[str]:
    return re.findall('data-kind="(.+?)"', page)


def test_a_chart_stands_beside_the_headline_and_the_table_is_first_below() -> None:
    page = whole()
    assert charts_of(page.partition("<h2>")[0]) == ["implementations"]
    assert titles(page) == [
        "Results",
        "Scaling",
        "Where the time goes",
        "Loss curves",
        "Environment",
        "Reproduce",
    ]
    assert re.findall('<section class="section" id="(.+?)"', page) == ["results", "scaling"]


def test_the_page_says_what_was_measured_and_how_many_gradients_are_right() -> None:
    assert "<h1>mnist_cnn on digits</h1>" in whole()
    right = " · gradients of 18 of 19 configurations match a single process"
    assert f"{right}<br><small>Folder: demo</small></p>" in whole()


def test_skipped_trials_count_neither_as_run_nor_as_planned() -> None:
    first, unusable, *others = sweep_spec(repetitions=2).trials
    skipped = record(unusable[0], status=Status.SKIPPED, reason="no CUDA device")
    records = [run(first[0], 100.0), skipped]
    usable = [trial for trial in others if trial[0] != unusable[0]]
    unfinished = analyze(stored(records))
    warning = f"Unfinished: 1 of {1 + len(usable)} trials; to finish: dpbench sweep"
    assert unfinished.warnings[0] == f"{warning} --name demo --resume"
    records += [run(one, 100.0, repetition=number) for one, number in usable]
    finished = analyze(stored(records))
    assert f" · {1 + len(usable)} trials · gradients of " in page_text(finished)
    assert not any("Unfinished" in one for one in finished.warnings)


def test_warnings_are_a_banner_and_notes_of_the_table_stand_below_it() -> None:
    warning = "wrong gradients, so their speeds do not count: torch-dp ×1, batch 32"
    assert f"<li>{warning}</li>" in whole().partition('class="banner"')[2]
    assert "<br>* copies that do not communicate: " in whole()


def test_published_numbers_and_collectives_have_a_page() -> None:
    published = page_text(read_results(PUBLISHED / "tabtune_tabicl.csv"))
    assert " rows of published numbers, not measured here</p>" in published
    assert titles(published) == ["Results"]
    page = page_text(stored_collectives(sample_collectives()), charts=True)
    assert "<h1>all_reduce on gloo, shm, nccl</h1>" in page
    assert titles(page) == ["Communication", "Reproduce"]
    assert '<section class="section" id="communication"' in page
    assert charts_of(page) == ["bandwidth"]


def test_a_page_of_collectives_that_all_failed_says_why() -> None:
    failed = [one for one in sample_collectives() if one.status is Status.FAILED]
    page = page_text(stored_collectives(failed))
    assert "all_reduce on nccl ×2: failed (1 repetition): rank 1 died" in page
    assert "<table>" not in page.partition("<h2>Reproduce")[0]


def test_a_rule_stands_between_batch_sizes() -> None:
    results = whole().partition('id="results"')[2].partition("</table>")[0]
    first, _ = (body.count("<tr") for body in results.split("<tbody>")[1:])
    assert (first,) == configurations_table(summarize(sample_records(repetitions=2))).rules


def test_sorting_goes_by_the_values_of_the_json_rows() -> None:
    rows = json.loads(rows_text(ROWS, format="json"))
    rows.sort(key=lambda row: row["batch_size"])
    for column in configurations_table(ROWS).columns:
        assert [*(column.sort or ())] == [row[column.key] for row in rows], column.key


def test_claims_stand_last() -> None:
    claimed = configurations_table(published_rows(PUBLISHED / "tabtune_tabicl.csv")).columns[-1]
    assert claimed.header.endswith("(claimed)")
    assert "not measured here" in claimed.meaning


def test_failures_have_their_whole_reason_and_equal_ones_share_a_line() -> None:
    reason = "rank 1 ended with signal 9: " + "out of something, " * 20
    failed = [record(trial(group_size=n), status=Status.FAILED, reason=reason) for n in (1, 2)]
    table = configurations_table(summarize([*failed, run(trial("dp"), 1.0)]))
    labels = "ddp/gloo ×1, batch 32; ddp/gloo ×2, batch 32"
    assert f"failed, {labels}: {reason.strip()}" in table.notes


def by_field(words: Sequence[str]) -> dict[str, str]:
    """Options of a command line with their values."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return {name.lstrip("-").replace("-", "_"): value for name, value in pairs}


def planned(typed: dict[str, str]) -> set[Configuration]:
    """The configurations that these options measure on two cores."""
    host = Node(number=0, machine=MACHINE, devices=("cpu",) * 2, common={})
    spec = build_sweep_spec(read_options(SweepOptions, typed), [host])
    return {*spec.configurations}


def test_the_command_of_a_row_measures_that_row_alone() -> None:
    """Beside it only `single`, which its speedup is against."""
    words = (
        "--name x --gpus 2 --arch mlp,mnist_cnn --implementations ddp,dp,local-sgd"
        " --backends gloo,shm --batch-sizes 8,16 --dtype f32,bf16 --sync-every 1,4"
        " --bucket-cap-mb auto,5 --scaling weak,strong --lr 0.1,0.01 --warmup 1 --steps 4"
    )
    typed = by_field(words.split())
    measured = sorted(planned(typed), key=content_hash)
    command = CommandLine(name="sweep", options=typed)
    assert len(measured) > 300
    for configuration in measured[:40]:
        program, name, *again = shlex.split(command_to_measure(command, [configuration]))
        assert (program, name) == ("dpbench", "sweep")
        assert planned(by_field(again)) == {configuration, configuration.single}
    assert command_to_measure(command, []) == ""
    first, *_ = sample_records()
    assert command_to_measure(replace(command, name="check"), [first.configuration]) == ""


def test_a_page_copies_the_command_of_each_row() -> None:
    buttons = re.findall(r'data-command="([^"]+)"', whole())
    assert len(buttons) == len(configurations_table(summarize(sample_records(repetitions=2))).lines)
    assert all(one.startswith("dpbench sweep ") for one in buttons)
    published = page_text(read_results(PUBLISHED / "tabtune_tabicl.csv"))
    assert "data-command" not in published.partition("<script>")[0]


def test_charts_without_data_are_left_out() -> None:
    expected = {kind.name for kind in CHARTS.values() if not kind.shows_collectives}
    # No phases in the sample; of two group sizes speedup says no more than efficiency.
    assert {*charts_of(whole())} == expected - {"step-shares", "speedup"}


def test_equal_data_gives_equal_pages_and_one_that_cannot_be_written_is_an_error(
    tmp_path: Path,
) -> None:
    one = replace(read_results(PUBLISHED / "tabtune_tabicl.csv"), name="published")
    first, second = page_text(one, charts=True), page_text(one, charts=True)
    assert first == second
    assert 'data-kind="efficiency"' in first
    page = write_page(tmp_path / "a" / "index.html", first)
    with pytest.raises(FileError, match="cannot write"):
        write_page(page / "index.html", first)


def test_the_markup_is_sound_and_needs_nothing_from_elsewhere() -> None:
    seen = Seen(whole())
    assert seen.open == []
    ids = {f"#{value}" for name, value in seen.attributes if name == "id"}
    loads = {value for name, value in seen.attributes if name in ("src", "href", "xlink:href")}
    assert loads <= ids


def test_hostile_text_is_text() -> None:
    failed = record(trial(), status=Status.FAILED, reason=HOSTILE)
    markup = page_text(replace(analysis([failed]), name=HOSTILE))
    seen = Seen(markup)
    assert seen.tags.count("script") == 1
    assert not any(name.startswith("on") for name, _ in seen.attributes)
    assert not re.search("[\x1b\u202e]", markup)


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_one_picture_whose_ids_are_its_own(kind: str) -> None:
    with house_style():
        pictures = [inline_svg(figure(kind), salt=salt) for salt in "ab"]
    one, other = ({*re.findall(r'(?:href="#|url\(#)([^")]+)', svg)} for svg in pictures)
    assert not one & other
    for svg, references in zip(pictures, (one, other), strict=True):
        root = ElementTree.fromstring(svg)
        assert root.tag.endswith("svg")
        assert references <= {element.get("id") for element in root.iter()}
