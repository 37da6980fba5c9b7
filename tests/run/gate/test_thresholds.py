"""Thresholds: the command line before pyproject.toml before the defaults."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.errors import UnknownName, UsageError
from dpbench.run.gate.thresholds import DEFAULTS, Thresholds, resolve

METRICS = ("images_per_second", "efficiency", "peak_memory_bytes")
FILE = """
[tool.dpbench.check]
tolerance = "5%"
metric = ["images_per_second", "peak_memory_bytes=10%"]
strict = true
repetitions = 7
"""


def resolved(folder: Path, text: str | None = None, **typed: object) -> Thresholds:
    if text is not None:
        (folder / "pyproject.toml").write_text(text)
    return resolve({**dict.fromkeys(DEFAULTS), **typed}, METRICS, folder)


def test_without_anything_it_is_three_percent_of_throughput(tmp_path: Path) -> None:
    found = resolved(tmp_path)
    assert found.tolerances == {"images_per_second": pytest.approx(0.03)}
    assert (found.repetitions, found.budget_seconds, found.strict) == (5, 300.0, False)
    assert found.describe() == ("tolerance: images_per_second 3 % (default); not strict (default)")


def test_the_file_comes_before_the_defaults(tmp_path: Path) -> None:
    found = resolved(tmp_path, FILE)
    assert found.tolerances == {
        "images_per_second": pytest.approx(0.05),
        "peak_memory_bytes": pytest.approx(0.10),
    }
    assert (found.repetitions, found.strict, found.budget_seconds) == (7, True, 300.0)
    assert found.sources["budget"] == "default"
    assert found.sources["strict"] == "pyproject.toml"


def test_the_command_line_comes_before_the_file(tmp_path: Path) -> None:
    found = resolved(tmp_path, FILE, metric=["efficiency=2%"], strict=False, budget="90s")
    assert found.tolerances == {"efficiency": pytest.approx(0.02)}
    assert (found.strict, found.budget_seconds) == (False, 90.0)
    assert "(command line)" in found.describe_repetitions()


def test_a_typed_tolerance_replaces_those_of_single_metrics_in_the_file(tmp_path: Path) -> None:
    found = resolved(tmp_path, FILE, tolerance="1%")
    assert set(found.tolerances.values()) == {0.01}


def test_a_typed_metric_without_its_own_takes_the_common_tolerance(tmp_path: Path) -> None:
    found = resolved(tmp_path, None, metric=["efficiency,peak_memory_bytes=9%"], tolerance="4%")
    assert found.tolerances == {
        "efficiency": pytest.approx(0.04),
        "peak_memory_bytes": pytest.approx(0.09),
    }


def test_a_tolerance_of_its_own_comes_from_where_the_metric_does(tmp_path: Path) -> None:
    found = resolved(tmp_path, FILE)
    assert found.describe() == (
        "tolerance: images_per_second 5 %, peak_memory_bytes 10 % (pyproject.toml); "
        "strict (pyproject.toml)"
    )
    found = resolved(tmp_path, "", metric=["efficiency,peak_memory_bytes=9%"])
    assert found.describe() == (
        "tolerance: efficiency 3 % (default), peak_memory_bytes 9 % (command line); "
        "not strict (default)"
    )


def test_other_sections_of_the_file_are_nobodys_business(tmp_path: Path) -> None:
    assert resolved(tmp_path, "[tool.ruff]\nline-length = 100\n") == resolved(tmp_path)


def test_an_unknown_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"'tolerence'.*Did you mean 'tolerance'"):
        resolved(tmp_path, '[tool.dpbench.check]\ntolerence = "3%"\n')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tolerance = 0.03", r'got 0.03; expected e.g. tolerance = "3%"'),
        ('strict = "yes"', "expected e.g. strict = true"),
        ("metric = []", "expected e.g. metric = "),
        ("metric = [1]", "expected e.g. metric = "),
        ("repetitions = true", "expected e.g. repetitions = 5"),
        ("repetitions = 1", "1 has no spread to judge by"),
        ('budget = "soon"', r"\[tool.dpbench.check\] budget: got 'soon'; expected a duration"),
        ('tolerance = "3"', r"\[tool.dpbench.check\] tolerance: got '3'; expected a percentage"),
        ('metric = ["speed"]', "metric: got 'speed'; expected one of"),
        ('metric = ["efficiency=x"]', "metric efficiency: got 'x'; expected a percentage"),
        ("tolerance =", "is not TOML"),
    ],
)
def test_a_bad_value_in_the_file_is_named_with_its_place(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        resolved(tmp_path, f"[tool.dpbench.check]\n{line}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tool = 1", "tool is 1; expected a table"),
        ('[tool]\ndpbench = "x"', "tool.dpbench is 'x'; expected a table"),
        (
            '[tool.dpbench.chek]\ntolerance = "3%"',
            r"key in \[tool.dpbench\] .*Did you mean 'check'",
        ),
        ('[tool.dpbench]\ntolerance = "3%"', r"key in \[tool.dpbench\] .* 'tolerance'"),
        ("[tool.dpbench.check]\nrepetitions = 1", r"^pyproject.toml, \[tool.dpbench.check\] repet"),
        ("[tool.dpbench]\ncheck = []", r"tool.dpbench.check is \[\]; expected a table"),
    ],
)
def test_what_is_not_of_the_table_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolved(tmp_path, text)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").mkdir()
    with pytest.raises(UsageError, match=r"cannot read .*pyproject.toml: Is a directory"):
        resolved(tmp_path)


def test_a_metric_has_one_tolerance(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="efficiency is listed twice"):
        resolved(tmp_path, None, metric=["efficiency", "efficiency=2%"])


@given(text=st.text(max_size=30), key=st.sampled_from(["tolerance", "metric", "budget"]))
def test_no_text_is_more_than_a_usage_error(text: str, key: str) -> None:
    value = [text] if key == "metric" else text
    with contextlib.suppress(UsageError):
        found = resolve({**dict.fromkeys(DEFAULTS), key: value}, METRICS, Path("/nonexistent"))
        assert all(0 < tolerance < 1 for tolerance in found.tolerances.values())
        assert 0 < found.budget_seconds < math.inf
