"""Collectives that were changed by hand: shown or refused with their line, never a traceback."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench import store
from dpbench.codec import decode
from dpbench.errors import StoreError
from dpbench.launch.collectives import run_collectives
from dpbench.launch.synthetic import SyntheticCollectives
from dpbench.records.collectives import CollectiveSpec
from dpbench.store import CollectiveStore
from tests.builders import collective_spec
from tests.fuzz.commands import assert_ends_well
from tests.fuzz.mutations import changes, damaged

SPECS = [
    collective_spec(
        repetition=repetition,
        overlap_sizes_bytes=(4096,),
        exchange_sizes_bytes=(1024, 4096),
        samples=3,
    )
    for repetition in range(3)
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collectives")
    with CollectiveStore.append_to(folder / "c", ["comm"]) as results:
        for record in run_collectives(
            SPECS, SyntheticCollectives(), environment_id="e", time_limit_seconds=1
        ):
            results.append(record)
    return folder


@pytest.fixture(scope="module")
def content(good: Path) -> bytes:
    return (good / "c" / store.COLLECTIVES_FILE).read_bytes()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_values_that_nobody_measured(good: Path, content: bytes, data: st.DataObject) -> None:
    records = [json.loads(line) for line in content.splitlines()]
    everywhere = data.draw(st.booleans())
    for change in data.draw(st.lists(changes(records[0]), min_size=1, max_size=2)):
        for record in records if everywhere else records[:1]:
            change.of(record)
    assert_shown_or_refused(good, "".join(f"{sealed(record)}\n" for record in records).encode())


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data())
def test_bytes_that_were_lost_or_written_twice(
    good: Path, content: bytes, data: st.DataObject
) -> None:
    assert_shown_or_refused(good, data.draw(damaged(content)))


def assert_shown_or_refused(folder: Path, content: bytes) -> None:
    (folder / "c" / store.COLLECTIVES_FILE).write_bytes(content)
    assert_ends_well(["report", "c", "--no-charts"], folder)


def sealed(record: dict[str, Any]) -> str:
    """The line of a record, under the identifier of its specification, so that it is read."""
    with contextlib.suppress(StoreError):
        spec = decode(CollectiveSpec, record.get("collective"))
        record = {**record, "collective_id": spec.collective_id}
    return json.dumps(record)
