"""[tool.dpbench.check] of any type, and a pyproject.toml that is no TOML: never a traceback."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpbench.analysis.metrics import METRICS
from dpbench.run.gate.thresholds import DEFAULTS, PROJECT_FILE
from tests.fuzz import folders
from tests.fuzz.arguments import METRIC_LISTS, NUMBERS, SHARES, TIMES, WORDS
from tests.fuzz.commands import assert_ends_well

CHECK = ["check", "good", "--baseline", "other"]

TEXTS = st.one_of(
    st.sampled_from((*SHARES, *TIMES, *NUMBERS, *WORDS, *METRIC_LISTS, *METRICS)),
    st.text(max_size=8),
)
PLAIN = st.one_of(
    TEXTS,
    st.booleans(),
    st.sampled_from((0, 1, 2, 5, -1, 2**63, 10**400)),
    st.floats(),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
RIGHT = {
    "tolerance": st.sampled_from(SHARES),
    "metric": st.lists(st.sampled_from((*METRICS, *METRIC_LISTS)), max_size=3),
    "strict": st.booleans(),
    "repetitions": st.sampled_from((0, 1, 2, 5, -1, 2**63, 10**400)),
    "budget": st.sampled_from(TIMES),
}
KEYS = st.sampled_from((*DEFAULTS, "tolerances", "", "a.b"))
SECTIONS = st.one_of(
    st.fixed_dictionaries({}, optional=RIGHT),
    st.dictionaries(KEYS, VALUES, max_size=3),
    VALUES,
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thresholds")
    folders.make(folder)
    return folder


def toml(value: Any) -> str:
    """A value as TOML writes it inline."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)} = {toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else str(value).lower()
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value.encode("utf-8", "replace").decode()).replace("\x7f", "")


@settings(max_examples=50, deadline=None, derandomize=True)
@given(section=SECTIONS)
@example(section={"metric": ["efficiency=nan%"], "tolerance": "1e-300%"})
def test_a_section_of_any_values(here: Path, section: Any) -> None:
    text = f"[tool.dpbench]\ncheck = {toml(section)}\n"
    (here / PROJECT_FILE).write_text(text, encoding="utf-8")
    assert_ends_well(CHECK, here)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(parts=st.lists(st.sampled_from(("tool", "dpbench", "check", "x")), max_size=3), value=VALUES)
def test_a_table_on_the_way_that_is_something_else(
    here: Path, parts: list[str], value: Any
) -> None:
    text = f"{'.'.join(parts or ['tool'])} = {toml(value)}\n"
    (here / PROJECT_FILE).write_text(text, encoding="utf-8")
    assert_ends_well(CHECK, here)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(content=st.binary(max_size=40))
@example(content=b"[tool.dpbench.check]\nstrict = \xff\n")
@example(content=b"a = " + b"[" * 100_000)
@example(content=b"a = " + b"9" * 5000)
@example(content=b"a = 2025-99-99")
def test_bytes_that_may_be_no_toml(here: Path, content: bytes) -> None:
    (here / PROJECT_FILE).write_bytes(content)
    assert_ends_well(CHECK, here)
