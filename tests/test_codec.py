"""What is stored comes back equal, whatever it holds."""

from __future__ import annotations

import hashlib
import json

import pytest

from dpbench import folders
from dpbench.codec import content_hash, decode, encode, from_json
from dpbench.errors import FileError
from dpbench.records.trial import Status, TrialRecord, Window
from dpbench.shipped import RESULTS
from dpbench.specs import Configuration, WorkloadSpec
from tests.analysis.builders import record, trial
from tests.builders import configuration

EXAMPLE = folders.load_sweep(RESULTS / "examples" / "two-cores").records


def test_a_record_comes_back_equal_and_stores_no_default() -> None:
    for one in [*EXAMPLE, record(trial(), status=Status.FAILED, reason="killed")]:
        content = encode(one)
        assert decode(TrialRecord, content) == one
        assert ("reason" in content) == (one.reason is not None)
        assert ("ranks" in content) == (one.ranks != ())
        assert content["status"] == one.status.value


def test_a_hash_is_that_of_the_canonical_json() -> None:
    """printf '{"a":1}' | sha256sum begins with 015abd7f5cc5."""
    assert content_hash({"a": 1}) == "015abd7f5cc5"
    assert content_hash({"a": 1}, length=4) == "015a"
    text = '{"architecture":"a","dataset":"\\u00fc","seed":3}'
    workload = WorkloadSpec(seed=3, dataset="ü", architecture="a")
    assert content_hash(workload, length=64) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_losses_that_json_has_no_number_for_survive_as_text(value: float) -> None:
    window = Window(seconds=1.0, step_seconds=(1.0,), samples=1, losses=(value,))
    text = json.dumps(encode(window), allow_nan=False)
    assert json.loads(text, parse_constant=pytest.fail)
    (again,) = decode(Window, json.loads(text)).losses
    assert repr(again) == repr(value)


RECORD = encode(record(trial()))
VALUES = encode(configuration())
WINDOW = {"seconds": 1, "samples": 1}


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (TrialRecord, {**RECORD, "status": "fine"}, r"TrialRecord\.status: .*, got 'fine'"),
        (TrialRecord, {**RECORD, "duration_seconds": "inf"}, r"\.duration_seconds: .* number"),
        (TrialRecord, {**RECORD, "ranks": [{}]}, r"TrialRecord\.ranks\[0\]\.rank: missing"),
        (TrialRecord, {**RECORD, "color": 1}, r"TrialRecord\.color: unexpected"),
        (TrialRecord, {**RECORD, "reason": ["x" * 900_000]}, r"\.reason: .*…"),
        (Configuration, {**VALUES, "devices": ["cpu", 1]}, r"Configuration\.devices\[1\]: .*"),
        (
            Configuration,
            {**VALUES, "scaling": "both"},
            r"scaling: .* 'weak' or 'strong', got 'both",
        ),
        (Window, {**WINDOW, "step_seconds": [0.1, None]}, r"Window\.step_seconds\[1\]: .* number"),
    ],
)
def test_a_misfit_is_an_error_that_names_the_place(
    kind: type, content: object, message: str
) -> None:
    with pytest.raises(FileError, match=message) as raised:
        decode(kind, content)
    assert len(str(raised.value)) < 300


def test_text_that_is_no_json_is_an_error() -> None:
    for text in ("{", b'{"a": "\xff"}', '{"a": "\\u001b"'):
        with pytest.raises(FileError, match="not JSON: "):
            from_json(Window, text)


def test_bytes_that_are_no_text_are_replaced() -> None:
    """A name of a file may have them."""
    again = decode(TrialRecord, {**encode(record(trial())), "reason": "no \udcff"})
    assert again.reason == "no ?"
