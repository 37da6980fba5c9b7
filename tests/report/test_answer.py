"""Answers: paragraphs for people, data for programs."""

from __future__ import annotations

from dpbench.analysis.estimate import Estimate
from dpbench.report.answer import Answer, plain_estimate
from dpbench.report.table import text_table

BAND = Estimate(
    value=2.0, low=1.0, high=4.0, unit="s", sample_size=3, basis="model", confidence=0.9
)


def test_an_answer_is_its_paragraphs_or_its_data() -> None:
    table = text_table(("Name", "n"), [("ddp", "3")], words=("Name",))
    found = Answer(paragraphs=("A title", "", table, "· a note"), data={"n": 3})
    assert found.render(as_json=False) == "A title\n\nName  n\n----  -\nddp   3\n\n· a note\n"
    assert found.render(as_json=True) == '{\n "n": 3\n}\n'


def test_an_interval_comes_with_its_confidence() -> None:
    assert plain_estimate(BAND) == {
        "value": 2.0,
        "low": 1.0,
        "high": 4.0,
        "unit": "s",
        "confidence": 0.9,
        "sample_size": 3,
        "basis": "model",
    }


def test_the_kind_is_there_where_it_is_known() -> None:
    assert plain_estimate(BAND, "projected") == {
        **(plain_estimate(BAND) or {}),
        "kind": "projected",
    }


def test_nothing_measured_is_none() -> None:
    assert plain_estimate(None) is None
