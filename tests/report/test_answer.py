"""Answers: paragraphs for people, data for programs."""

from __future__ import annotations

from dpbench.analysis.estimate import Estimate
from dpbench.report.answer import Answer, assumed, plain_estimate
from dpbench.report.table import text_table

BAND = Estimate(
    value=2.0, low=1.0, high=4.0, unit="s", sample_size=3, basis="model", confidence=0.9
)


def test_an_answer_is_its_paragraphs_or_its_data() -> None:
    table = text_table(("Name", "n"), [("ddp", "3")], words=("Name",))
    found = Answer(paragraphs=("A title", "", table, "· a note"), data={"n": 3})
    assert found.shown(as_json=False) == "A title\n\nName  n\n----  -\nddp   3\n\n· a note\n"
    assert found.shown(as_json=True) == '{\n "n": 3\n}\n'


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


def test_a_sentence_stands_once_under_all_whom_it_concerns() -> None:
    series = [
        (f"{name}, batch {batch}", ("of all", f"of {name}", f"of {name} {batch}"))
        for name in ("ddp/gloo", "ddp/shm")
        for batch in (32, 128)
    ]
    assert assumed(series) == [
        "Assumed\n· of all",
        "Assumed of ddp/gloo\n· of ddp/gloo",
        "Assumed of ddp/shm\n· of ddp/shm",
        "Assumed of ddp/gloo, batch 32\n· of ddp/gloo 32",
        "Assumed of ddp/gloo, batch 128\n· of ddp/gloo 128",
        "Assumed of ddp/shm, batch 32\n· of ddp/shm 32",
        "Assumed of ddp/shm, batch 128\n· of ddp/shm 128",
    ]


def test_series_that_share_a_sentence_across_backends_are_named() -> None:
    series = [
        ("ddp/gloo ×2, batch 32", ("small",)),
        ("ddp/gloo ×2, batch 128", ()),
        ("ddp/shm ×2, batch 32", ("small",)),
    ]
    assert assumed(series) == ["Assumed of ddp/gloo ×2, batch 32; ddp/shm ×2, batch 32\n· small"]
