"""What travels between nodes is read back as it was, and nothing else is read at all."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.launch.causes import RankTrace, Stuck
from dpbench.launch.nodes.admission import hello
from dpbench.launch.nodes.messages import (
    PROTOCOL,
    Abort,
    Beat,
    End,
    Leave,
    Message,
    NotAMessage,
    Prepare,
    Prepared,
    Refused,
    Result,
    Run,
    Welcome,
    from_json,
    to_json,
)
from dpbench.launch.rank import Failure
from dpbench.measure.trial import RankReport
from dpbench.records.trial import RankMeasurement, Verification, Window
from tests.builders import trial_spec
from tests.launch.nodes.builders import node, request

REPORT = RankReport(
    item="rows",
    items_per_sample=2,
    verification=Verification(
        passed=True, max_relative_error=float("inf"), tolerance=1e-10, tensors_compared=2
    ),
    measurement=RankMeasurement(
        rank=1,
        pid=7,
        device="cpu",
        timed=Window(start_seconds=0.1, seconds=0.3, step_seconds=(0.1, 0.2), samples=8),
        setup_seconds=1.5,
    ),
)
FAILURE = Failure(1, 0.25, "ValueError", "broken", "", lost_peer=False, out_of_memory=False)
EVERY_KIND: tuple[Message, ...] = (
    hello(request(1), node(1, options=(("--batch-sizes", "32"),))),
    Welcome(hostname="host0"),
    Refused(reason="no"),
    Beat(),
    Prepare(number=2, dataset="digits"),
    Prepared(number=2, error="no file"),
    Run(
        number=3,
        trial=trial_spec(nodes=(1, 1)),
        limit_seconds=60.0,
        address="::1",
        port=40_000,
        store_prefix="secret",
    ),
    Abort(number=3),
    Result(number=3, reports=(REPORT,)),
    Result(
        number=3,
        traces=(
            RankTrace(rank=0, stuck=Stuck(place="loss (model.py:12)", waiting=False)),
            RankTrace(rank=1, failure=FAILURE, exit_code=-9, aborted=True),
        ),
    ),
    Leave(reason="it was interrupted"),
    End(signal=2),
)


@pytest.mark.parametrize("message", EVERY_KIND, ids=lambda message: type(message).__name__)
def test_a_message_is_read_back_as_it_was(message: Message) -> None:
    assert from_json(to_json(message)) == message


def test_every_kind_is_tried() -> None:
    assert {type(message) for message in EVERY_KIND} == set(get_args(Message))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"[]\n",
        b'["Run"]\n',
        b'["Run", {}]\n',
        b'["Popen", {"args": "true"}]\n',
        b'["Abort", {"number": 1, "more": 2}]\n',
        b'["Abort", {"number": "1"}]\n',
        b'[["Abort"], {"number": 1}]\n',
        b'["Hello", 3]\n',
        b"[" * 100_000,
        pickle.dumps(Abort(number=1)),
    ],
)
def test_anything_else_is_refused_and_shown(line: bytes) -> None:
    with pytest.raises(NotAMessage, match=r"^not a message of dpbench: b[^(]*$"):
        from_json(line)


def test_another_protocol_is_told_apart_before_its_fields_are_read() -> None:
    name, content = json.loads(to_json(EVERY_KIND[0]))
    line = json.dumps([name, {**content, "protocol": PROTOCOL + 1, "new": 1}]).encode()
    with pytest.raises(NotAMessage, match=f"protocol {PROTOCOL + 1} instead of {PROTOCOL}"):
        from_json(line)


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_no_bytes_end_the_reader(line: bytes) -> None:
    with pytest.raises(NotAMessage):
        from_json(line)


def test_texts_for_people_are_cut_and_tell_no_terminal_what_to_do() -> None:
    evil = "\x1b[2J\ndpbench: all is well\x07" + "x" * 900_000
    failure = replace(FAILURE, kind=evil, text=evil, place=evil)
    trace = RankTrace(rank=0, failure=failure)
    for message, read in (
        (Leave(reason=evil), lambda message: message.reason),
        (End(error=evil), lambda message: message.error),
        (Welcome(hostname=evil), lambda message: message.hostname),
        (hello(request(1), node(1, address=evil)), lambda message: message.node.address),
        (Result(number=1, traces=(trace,)), lambda message: message.traces[0].failure.kind),
        (Result(number=1, traces=(trace,)), lambda message: message.traces[0].failure.text),
        (Result(number=1, traces=(trace,)), lambda message: message.traces[0].failure.place),
    ):
        text = read(from_json(to_json(message)))
        assert text.isprintable()
        assert text.startswith("\\x1b[2J\\ndpbench: all is well\\x07xx")
        assert text.endswith("…")
        assert len(text) <= 1000
