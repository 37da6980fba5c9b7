"""What is stored comes back equal, whatever it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.codec import canonical_json, content_hash, decode, encode
from dpbench.errors import StoreError
from dpbench.records.trial import RankMeasurement, Status, TrialRecord, Verification, Window
from dpbench.specs import TrialSpec, WorkloadSpec
from tests.analysis.builders import record, trial
from tests.builders import trial_spec

T = TypeVar("T")

FLOATS = st.floats(allow_nan=False)
COUNTS = st.integers(min_value=0, max_value=2**63 - 1)
TEXTS = st.text(
    st.characters(exclude_categories=("Cc", "Cf", "Cs")) | st.sampled_from("\n\t"), max_size=10
)
MANY_FLOATS = st.lists(FLOATS, max_size=4).map(tuple)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


WORKLOADS = st.builds(
    WorkloadSpec,
    architecture=TEXTS,
    dataset=TEXTS,
    optimizer=TEXTS,
    learning_rate=FLOATS.filter(lambda rate: abs(rate) < 1e300),
    seed=COUNTS,
)
TRIALS = st.builds(
    TrialSpec,
    workload=WORKLOADS,
    implementation=TEXTS,
    backend=TEXTS,
    group_size=COUNTS,
    batch_size=COUNTS,
    warmup_steps=COUNTS,
    timed_steps=COUNTS,
    threads_per_replica=COUNTS,
    devices=st.lists(TEXTS, max_size=3).map(tuple),
    scaling=st.sampled_from(["weak", "strong"]),
    accumulation_steps=COUNTS,
    repetition=COUNTS,
)
WINDOWS = st.builds(
    Window,
    start_seconds=FLOATS,
    seconds=FLOATS,
    step_seconds=MANY_FLOATS,
    samples=COUNTS,
    losses=MANY_FLOATS,
)
RANKS = st.builds(
    RankMeasurement,
    rank=COUNTS,
    pid=COUNTS,
    device=TEXTS,
    timed=WINDOWS,
    setup_seconds=FLOATS,
    without_sync=optional(WINDOWS),
    peak_host_memory_bytes=optional(COUNTS),
    peak_device_memory_bytes=optional(COUNTS),
    reduced_bytes_per_step=optional(COUNTS),
    collectives_per_step=optional(FLOATS),
    allocator=optional(TEXTS),
    warmup_steps=COUNTS,
    timed_steps=COUNTS,
    sample_checksum=optional(TEXTS),
    initial_checksum=optional(TEXTS),
    final_checksum=optional(TEXTS),
)
VERIFICATIONS = st.builds(
    Verification,
    passed=st.booleans(),
    max_relative_error=FLOATS,
    tolerance=FLOATS,
    tensors_compared=COUNTS,
    worst_parameter=optional(TEXTS),
)
RECORDS = st.builds(
    TrialRecord,
    trial=TRIALS,
    environment_id=TEXTS,
    started_utc=TEXTS,
    duration_seconds=FLOATS,
    status=st.sampled_from(Status),
    item=TEXTS,
    reason=optional(TEXTS),
    ranks=st.lists(RANKS, max_size=2).map(tuple),
    verification=optional(VERIFICATIONS),
)


def through_json(kind: type[T], value: T) -> T:
    return decode(kind, json.loads(json.dumps(encode(value))))


@settings(deadline=None, max_examples=50)
@given(TRIALS)
def test_a_trial_comes_back_equal_and_with_its_id(trial: TrialSpec) -> None:
    again = through_json(TrialSpec, trial)
    assert again == trial
    assert again.trial_id == trial.trial_id


@settings(deadline=None, max_examples=50)
@given(RANKS)
def test_a_measurement_comes_back_equal(rank: RankMeasurement) -> None:
    assert through_json(RankMeasurement, rank) == rank


@settings(deadline=None, max_examples=50)
@given(RECORDS)
def test_a_record_comes_back_equal(record: TrialRecord) -> None:
    again = through_json(TrialRecord, record)
    assert again == record
    assert type(again.status) is Status


@settings(deadline=None, max_examples=50)
@given(RECORDS)
def test_an_encoded_record_has_only_what_is_not_at_its_default(record: TrialRecord) -> None:
    content = encode(record)
    assert ("reason" in content) == (record.reason is not None)
    assert ("ranks" in content) == (record.ranks != ())
    assert ("item" in content) == (record.item != "samples")
    assert content["status"] == record.status.value


def test_canonical_json_has_one_text_per_value() -> None:
    workload = WorkloadSpec(architecture="a", dataset="ü", seed=3)
    assert canonical_json(workload) == '{"architecture":"a","dataset":"\\u00fc","seed":3}'


def test_a_hash_is_that_of_the_canonical_json() -> None:
    """printf '{"a":1}' | sha256sum begins with 015abd7f5cc5."""
    assert content_hash({"a": 1}) == "015abd7f5cc5"
    assert content_hash({"a": 1}, length=4) == "015a"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_json_has_no_number_for_survives_as_text(value: float) -> None:
    window = Window(start_seconds=0.0, seconds=1.0, step_seconds=(1.0,), samples=1, losses=(value,))
    text = canonical_json(window)
    assert json.loads(text, parse_constant=pytest.fail)
    (again,) = decode(Window, json.loads(text)).losses
    assert repr(again) == repr(value)


RECORD = encode(
    TrialRecord(
        trial=trial_spec(),
        environment_id="e",
        started_utc="2025-01-01T00:00:00.000+00:00",
        duration_seconds=1.0,
        status=Status.FAILED,
    )
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "fine"}, r"TrialRecord\.status: expected a Status, got 'fine'"),
        ({"duration_seconds": "1"}, r"duration_seconds: expected a number, got '1'"),
        ({"duration_seconds": True}, r"duration_seconds: expected a number, got True"),
        ({"environment_id": None}, r"environment_id: expected str, got None"),
        ({"trial": []}, r"TrialRecord\.trial: expected an object, got \[\]"),
        ({"ranks": [{}]}, r"TrialRecord\.ranks\[0\] lacks the field 'rank'"),
        ({"colour": 1}, "TrialRecord has an unknown field 'colour'"),
        ({"verification": {}}, r"TrialRecord\.verification lacks the field 'passed'"),
        ({"duration_seconds": 10**400}, "duration_seconds: expected a number that a float can"),
        (
            {"trial": {**encode(trial_spec()), "scaling": []}},
            r"scaling: expected one of .* got \[\]",
        ),
        (
            {"trial": {**encode(trial_spec()), "devices": ["cpu", 1]}},
            r"TrialRecord\.trial\.devices\[1\]: expected str, got 1",
        ),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_where(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        decode(TrialRecord, {**RECORD, **change})


@pytest.mark.parametrize("bad", [True, "0.1", None, [], {}])
def test_one_bad_step_of_a_window_is_named(bad: object) -> None:
    steps = [0.1, 0.2, bad, 0.4]
    content = {"start_seconds": 0, "seconds": 1, "samples": 1, "step_seconds": steps}
    with pytest.raises(StoreError, match=r"Window\.step_seconds\[2\]: expected a number"):
        decode(Window, content)


def test_whole_numbers_among_the_steps_become_floats() -> None:
    content = {"start_seconds": 0, "seconds": 1, "samples": 1, "step_seconds": [1, 0.5]}
    window = decode(Window, content)
    assert [type(step) for step in window.step_seconds] == [float, float]
    assert type(window.seconds) is float


def test_a_boolean_is_no_integer() -> None:
    with pytest.raises(StoreError, match="group_size: expected int, got True"):
        decode(TrialSpec, {**encode(trial_spec()), "group_size": True})


def test_equal_specifications_have_equal_ids_however_their_numbers_were_written() -> None:
    whole, real = (
        replace(trial_spec(), workload=replace(trial_spec().workload, learning_rate=rate))
        for rate in (1, 1.0)
    )
    assert whole == real
    assert whole.trial_id == real.trial_id


@pytest.mark.parametrize(
    "evil", ["\x1b[2J", "\x07", "\r", "\x9b31m", "\u202ecod", "\x7f", "\udcff"]
)
def test_what_a_terminal_would_act_upon_is_read_as_an_escape(evil: str) -> None:
    reason = f"no {evil}\n\tmatter"
    text = decode(TrialRecord, {**encode(record(trial())), "reason": reason}).reason
    assert text is not None
    assert text.replace("\n", "").replace("\t", "").isprintable()
    assert text.startswith("no \\")
    assert text.endswith("\n\tmatter")


def test_a_value_of_any_size_is_cut_where_an_error_shows_it() -> None:
    for content in ({"reason": ["x" * 900_000]}, {"y" * 900_000: 1}):
        with pytest.raises(StoreError) as raised:
            decode(TrialRecord, {**encode(record(trial())), **content})
        assert len(str(raised.value)) < 1500
