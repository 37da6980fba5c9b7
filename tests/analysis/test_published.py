"""Published CSV files: known answers, and one line for everything that is wrong with one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.frames import row_frame
from dpbench.analysis.projection.curve import scaling_curves
from dpbench.analysis.rows import published_rows
from dpbench.errors import FileError
from dpbench.options.results import ProjectOptions
from dpbench.options.shared import RowFilter
from dpbench.report.configurations import rows_text
from dpbench.run.projection import project

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
HEADER = "backend,group_size,batch_size,images_per_second\n"


def read(folder: Path, text: str):
    path = folder / "table.csv"
    path.write_text(text)
    return published_rows(path)


def test_every_published_efficiency_is_reproduced() -> None:
    """As printed in the sources, or worked out from what they print."""
    found: dict[str, list[str]] = {}
    for row in published_rows(PUBLISHED / "weak_scaling.csv"):
        assert row.efficiency is not None
        label = f"{row.implementation}, batch {row.batch_size}"
        found.setdefault(label, []).append(f"{row.efficiency.value:.3f}")
    assert len(found) == 15
    assert found["AlexNet, batch 512"][-1] == "0.746"
    assert found["VGG16(synthetic), batch 64"][-1] == "0.877"
    assert found["InceptionV3, batch 64"][-1] == f"{1131 / 142 / 8:.3f}"
    assert found["ResNet-152, batch 64"][-1] == f"{716 / 91.8 / 8:.3f}"
    for name, steps in {
        "ResNet-101": (0.171, 0.176, 0.176, 0.179, 0.179),
        "ResNeXt-101": (0.425, 0.438, 0.439, 0.447, 0.450),
    }.items():
        assert found[f"{name}, batch 32"] == [f"{steps[0] / step:.3f}" for step in steps]
    typical = published_rows(PUBLISHED / "tabtune_typical_speedups.csv")
    assert [row.efficiency.value for row in typical if row.efficiency] == [0.9, 0.875, 0.8125]


def test_other_columns(tmp_path: Path) -> None:
    header = "implementation,backend,gpus,batch_size,seconds_per_step,item,mood,x_claimed\n"
    lines = "Horovod (NCCL),gloo,2,32,+2.e-1,tokens,fine,\nother,gloo,2,32,1,tokens,fine,90 %\n"
    row, other = read(tmp_path, header + lines)
    claims = row_frame([row, other])["x_claimed"]
    assert (claims.isna().tolist(), claims[1]) == ([True, False], "90 %")
    assert "90 %" in rows_text([row, other], columns="x_claimed")
    assert row.throughput is not None
    assert (row.throughput.value, row.throughput.unit) == (320, "tokens/s")
    assert row.notes == ("columns not read: mood", "no speedup, no row at group size 1")
    assert RowFilter(implementations="Horovod (NCCL)").keeps(row)
    assert not RowFilter(implementations="Horovod").keeps(row)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADER, "expected a line of column names and lines of values"),
        (
            "backend,group_size,batch_size\na,1,2\n",
            "images_per_second, seconds_per_step, speedup, seconds, minutes, hours",
        ),
        ("gpus,gpus,minutes\n1,2,3\n", "line 1: expected each column once"),
        (
            "source,gpus,batch_per_gpu,images_per_second,scaling\nme,1,32,5,strong\n",
            "line 2, column 'scaling': expected 'weak', got",
        ),
        (HEADER + "gloo,1,32\n", "line 2, column 'images_per_second': expected a number, got"),
        (HEADER + "gloo,1,32,5,6\n", "not a CSV file .* line 2"),
        (HEADER + "gloo,1,32,fast\n", "line 2, column 'images_per_second': expected a valid"),
        (HEADER + "gloo,0,32,5\n", "expected greater than or equal to 1, got '0'"),
        ("gpus,seconds_per_step\n1,0.1\n", "column 'batch_size': expected a number, got ''"),
        (HEADER + "gloo,1,32,5\n\ngloo,1,32,6\n", "line 4.*each configuration once.*line 2"),
        (HEADER + '"gloo,1,32,5\n', "not a CSV file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FileError, match=words) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert "table.csv" in str(caught.value)


junk = st.text(alphabet=st.sampled_from("abcegimnoprstuz_,;.\"'\n\r\0 0123456789-+é"), max_size=200)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["", HEADER, "gpus,minutes\n", HEADER + "gloo,1,32,5\n"]),
    st.binary(max_size=60) | junk.map(str.encode),
)
def test_junk_is_never_anything_but_a_store_error(tmp_path: Path, start: str, rest: bytes) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(start.encode() + rest)
    with contextlib.suppress(FileError):
        assert published_rows(path)


def test_a_column_without_a_name_is_skipped(tmp_path: Path) -> None:
    _, second = read(tmp_path, ",gpus,images_per_second\n0,1,100\n1,2,180\n")
    assert second.speedup.value == pytest.approx(1.8)
    one, two = read(tmp_path, "gpus,images_per_second,\n1,100,\n2,180,\n")
    assert (one.notes, two.group_size) == ((), 2)


def test_a_table_with_single_has_speedups_over_it(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        "implementation,gpus,images_per_second\nsingle,1,100\nddp,1,90\nddp,2,150\n",
    )
    found = {row.label: row.speedup.value for row in rows if row.speedup}
    assert found == pytest.approx({"ddp ×1": 0.9, "ddp ×2": 1.5, "single ×1": 1.0})
    assert {row.reference and row.reference.label for row in rows} == {None, "single ×1"}


def test_speeds_that_count_different_items_are_not_compared(tmp_path: Path) -> None:
    """Neither in a speedup, nor in a chart, nor in a projection."""
    header = "group_size,images_per_second,item,batch_size\n"
    rows = read(tmp_path, header + "1,100,images,32\n2,180,tokens,32\n2,190,images,32\n")
    speedups = {(row.item, row.group_size): row.speedup for row in rows}
    assert speedups["images", 2].value == pytest.approx(1.9)
    assert speedups["tokens", 2] is None
    (tokens,) = (row for row in rows if row.item == "tokens")
    assert tokens.notes == ("no speedup, no row at group size 1 that counts tokens",)
    assert [*Analysis(name="", rows=rows).by_work] == ["images", "tokens"]
    curves, _ = scaling_curves(rows, lambda row: True)
    assert {one.group_sizes for one in curves} == {(1, 2), (2,)}
    alone = read(tmp_path, header + "1,100,images,32\n2,180,images,32\n")
    assert {row.work for row in alone} == {""}


def test_the_gpus_of_a_node_tell_which_sizes_are_on_the_next(tmp_path: Path) -> None:
    read(tmp_path, "gpus,batch_size,images_per_second,gpus_per_node\n1,8,100,2\n2,8,190,2\n")
    options = ProjectOptions(path=tmp_path / "table.csv", group_sizes=(4,))
    assert "next node" in project(options).text
