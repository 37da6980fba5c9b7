"""Markdown, HTML, CSV and JSON: hostile texts stay texts, and values keep their types."""

from __future__ import annotations

import csv
import io
import json
import math

import pandas as pd
import pytest

from dpbench.report.formats import (
    csv_text,
    html_table,
    json_text,
    markdown_table,
    table_of_frame,
)
from dpbench.report.table import text_table

HOSTILE = "@channel <img src=x onerror=alert(1)> [a](b) | `c` *d* 5 % a_b"
TABLE = text_table(("Name", "n"), [(HOSTILE, "1,000 ± 3")], words=("Name",))


def test_a_markdown_cell_is_no_markup() -> None:
    header, rule, line = markdown_table(TABLE).splitlines()
    assert line.startswith(r"| @​channel \<img src=x onerror=alert(1)\> \[a\](b) \| \`c\` \*d\*")
    assert rule.startswith("|:--")
    assert rule.endswith("-:|")
    assert len({len(header), len(rule), len(line)}) == 1


def test_an_html_cell_is_escaped() -> None:
    text = html_table(TABLE)
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "1,000\u00a0±\u00a03" in text


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+2", "-2+3", "@SUM(A1)", "\t=1"])
def test_no_text_in_a_csv_file_is_a_formula(text: str) -> None:
    frame = pd.DataFrame({"a": [text, "plain", None], "b": pd.Categorical([text, "c", None])})
    frame["x"] = [-1.5, math.inf, math.nan]
    rows = list(csv.reader(io.StringIO(csv_text(frame))))
    assert rows[1:] == [[f"'{text}"] * 2 + ["-1.5"], ["plain", "c", "inf"], ["", "", ""]]


def test_json_has_null_for_missing_values_and_text_for_infinity() -> None:
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None], dtype="Int64"),
            "x": [0.1, math.inf],
            "y": [math.nan, -math.inf],
            "ok": pd.array([True, None], dtype="boolean"),
            "word": pd.array(["gloo/é", None], dtype="string"),
        }
    )
    assert json.loads(json_text(frame)) == [
        {"n": 1, "x": 0.1, "y": None, "ok": True, "word": "gloo/é"},
        {"n": None, "x": "inf", "y": "-inf", "ok": None, "word": None},
    ]
    assert "gloo/é" in json_text(frame)
    assert json_text(frame[:0]) == "[]\n"


def test_a_frame_is_written_to_six_digits() -> None:
    frame = pd.DataFrame({"name": ["a", None], "x": [1 / 3, math.nan]})
    assert table_of_frame(frame).lines == [["a", "0.333333"], ["–", "–"]]
