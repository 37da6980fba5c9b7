"""CSV and JSON: hostile texts stay texts, and values keep their types."""

from __future__ import annotations

import csv
import io
import json
import math

import pandas as pd
import pytest

from dpbench.report.exports import csv_text, frame_json


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
    assert json.loads(frame_json(frame)) == [
        {"n": 1, "x": 0.1, "y": None, "ok": True, "word": "gloo/é"},
        {"n": None, "x": "inf", "y": "-inf", "ok": None, "word": None},
    ]
    assert "gloo/é" in frame_json(frame)
    assert frame_json(frame[:0]) == "[]\n"
