"""The table of the torch-ddp project: what it prints, and what dpbench prints in its layout."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpbench.analysis.imported.torch_ddp import read_torch_ddp
from dpbench.analysis.published import PublishedSpeed
from dpbench.errors import StoreError
from dpbench.report.torch_ddp_table import torch_ddp_text

README = """\
some text | with a bar
Backend | Proc Group | Batch | Images/s |
--------+------------+-------+----------|
gloo    | 1          | 32    | 1724.4   |
gloo    | 2          | 32    | 2261.0   |
nccl    | 2          | 32    | 3046.1   |
--------+------------+-------+----------|
"""
PRINTED = """\
Backend | Proc Group | Batch | Images/s | Loss delta/step | Loss delta/s | Final loss
--------+------------+-------+----------+-----------------+--------------+-----------
gloo    | 1          | 32    | 1724.4   | 0.0123          | 0.6612       | 1.9021
"""


def read(folder: Path, text: str) -> tuple[PublishedSpeed, ...]:
    path = folder / "table.txt"
    path.write_text(text)
    return read_torch_ddp(path)


def test_the_table_of_its_readme(tmp_path: Path) -> None:
    speeds = read(tmp_path, README)
    assert [(s.backend, s.group_size, s.batch_size, s.speed.value) for s in speeds] == [
        ("gloo", 1, 32, 1724.4),
        ("gloo", 2, 32, 2261.0),
        ("nccl", 2, 32, 3046.1),
    ]
    assert {s.implementation for s in speeds} == {"torch-ddp.rb"}
    assert all(s.speed.squared_error is None and s.notes == () for s in speeds)


def test_the_table_that_its_program_prints_has_more_columns(tmp_path: Path) -> None:
    (speed,) = read(tmp_path, PRINTED)
    assert speed.speed.value == 1724.4
    assert speed.notes == ("columns not read: Loss delta/step, Loss delta/s, Final loss",)


cells = st.tuples(
    st.sampled_from(["gloo", "nccl"]),
    st.integers(1, 64).map(str),
    st.integers(1, 4096).map(str),
    st.floats(0.1, 1e7).map(lambda value: f"{value:.1f}"),
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(cells, min_size=1, max_size=9, unique_by=lambda row: row[:3]))
def test_what_dpbench_prints_in_that_layout_is_read_again(
    tmp_path: Path, rows: list[tuple[str, str, str, str]]
) -> None:
    speeds = read(tmp_path, torch_ddp_text(rows))
    assert [
        (s.backend, str(s.group_size), str(s.batch_size), f"{s.speed.value:.1f}") for s in speeds
    ] == rows


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no table in it with the header Backend"),
        ("\n".join(README.splitlines()[:3]), "no table in it with the header Backend"),
        (README.replace("2261.0", "–"), "line 5: expected a number as the speed, not '–'"),
        (README.replace("| 2261.0   ", ""), "line 5: expected 4 cells"),
        (README.replace("gloo    | 2", "gloo    | 1"), r"line 5.*once \(it is on line 4\)"),
        (README.replace("nccl ", "<b>  "), "line 6: expected the name of a backend, not '<b>'"),
        (README.replace("| 2          | 32    | 22", "| 0 | 32 | 22"), "line 5.*the group size"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("end", "words"),
    [("gloo    | 4          | 32    | 19", "a bar at the end"), ("glo", "a whole row")],
)
def test_a_table_that_was_cut_short_is_refused(tmp_path: Path, end: str, words: str) -> None:
    rows = README.splitlines(keepends=True)[:-1]
    with pytest.raises(StoreError, match=f"line 7: expected {words}.*it was cut short"):
        read(tmp_path, "".join(rows) + end)
    assert len(read(tmp_path, f"{README}done")) == 3
