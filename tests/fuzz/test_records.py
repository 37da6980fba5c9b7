"""Results folders that were damaged or changed by hand: read or refused, never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench import store
from dpbench.analysis.fields.levels import COLUMNS, METRICS
from dpbench.errors import StoreError
from tests.fuzz import folders
from tests.fuzz.commands import assert_ends_well
from tests.fuzz.mutations import FLOATS, Change, changes, damaged, sealed

EVERY_METRIC = ",".join(METRICS)
COMMANDS = [
    f"report changed --no-charts --columns {','.join(COLUMNS)}",
    "report changed --no-charts --json",
    "explain changed",
    "explain changed --json",
    f"compare good changed --metric {EVERY_METRIC}",
    f"compare changed good --force --json --metric {EVERY_METRIC}",
    "compare changed:implementation=ddp changed:implementation=dp --format html",
    f"check changed --baseline good --metric {EVERY_METRIC} --force --junit j --markdown m",
    "check good --baseline changed --json --strict --metric efficiency",
    "export changed --format latex",
    "export changed --level trial --format json",
    "export changed --level rank --output rank.parquet",
    "export changed --format html",
    "export changed --level step",
]
PHASES = ("data", "forward", "backward", "optimizer")
READING = st.lists(st.sampled_from(COMMANDS), min_size=2, max_size=2, unique=True)


class Folder:
    """A folder of folders, in which the sweep `changed` is `good` with other files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        folders.make(path)
        (environment,) = (path / "good" / "environments").iterdir()
        self.headers = (store.SWEEP_FILE, f"environments/{environment.name}")
        self.files = {
            name: (path / "good" / name).read_bytes() for name in (store.TRIALS_FILE, *self.headers)
        }

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.files[store.TRIALS_FILE].splitlines()]

    def assert_readable_or_refused(self, files: Mapping[str, bytes], *commands: str) -> None:
        changed = self.path / "changed"
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(self.path / "good", changed)
        for name, content in files.items():
            (changed / name).write_bytes(content)
        try:
            store.load(changed)
        except StoreError:
            commands = commands[:1]  # the rest would read no further
        for command in commands:
            assert_ends_well(command.split(), self.path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("records"))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_values_of_records_that_nobody_measured(folder: Folder, data: st.DataObject) -> None:
    records = folder.records()
    everywhere = data.draw(st.booleans())
    drawn = data.draw(st.integers(0, len(records) - 1))
    for change in data.draw(st.lists(changes(records[drawn]), min_size=1, max_size=3)):
        for record in records if everywhere else records[drawn : drawn + 1]:
            change.of(record)
    folder.assert_readable_or_refused(lines(records), *data.draw(READING))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_bytes_that_were_lost_or_written_twice(folder: Folder, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(folder.files)))
    content = data.draw(damaged(folder.files[name]))
    folder.assert_readable_or_refused({name: content}, *data.draw(READING))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_other_values_in_sweep_and_environment(folder: Folder, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(folder.headers))
    document = json.loads(folder.files[name])
    for change in data.draw(st.lists(changes(document), min_size=1, max_size=2)):
        change.of(document)
    content = json.dumps(document).encode()
    folder.assert_readable_or_refused({name: content}, *data.draw(READING))


CRASHED = [
    (("trial", "devices"), []),
    (("trial", "group_size"), 2**63),
    (("trial", "implementation"), "nobody's"),
    (("trial", "batch_size"), 0),
    (("ranks", 0, "setup_seconds"), "nan"),
    (("ranks", 0, "timed", "step_seconds", 0), -1.0),
    (("ranks", 0, "timed", "losses"), [2.0]),
    (("ranks", 0, "phases", "forward_seconds", 0), "-inf"),
    (("ranks", 0, "phases", "optimizer_seconds"), [0.1]),
    (("ranks", 0, "phases", "data_seconds"), []),
    (("ranks", 0, "phases"), {f"{name}_seconds": [0.0] for name in PHASES}),
    (("trial", "bucket_cap_mb"), -5.0),
    (("trial", "timed_steps"), 0),
    (("trial", "threads_per_replica"), 0),
    (("trial", "compared"), ["bucket_cap_mb"]),
    (("trial", "compared"), ["nothing"]),
    (("trial", "workload", "learning_rate_rule"), "cubic"),
    (("trial", "workload", "learning_rate"), 0.0),
    (("ranks", 0, "gradient_norms", "local_squared"), [1.0]),
    (("ranks", 0, "peak_host_memory_bytes"), 10**400),
    (("duration_seconds",), "inf"),
]
"""What commands ended with a traceback of, or took for a number, before records were looked at."""


@pytest.mark.parametrize(("place", "value"), CRASHED)
def test_an_impossible_record_is_refused_with_its_line(
    folder: Folder, place: tuple[str | int, ...], value: Any
) -> None:
    records = folder.records()
    one = next(i for i, r in enumerate(records) if len(r["ranks"]) == 2)
    Change(place, "replace", value).of(records[one])
    folder.assert_readable_or_refused(lines(records), COMMANDS[0])
    with pytest.raises(StoreError, match=rf"trials.jsonl:{one + 1}: "):
        store.load(folder.path / "changed")


TRACES = [
    (("step_seconds", 0), "nan"),
    (("step_seconds",), [0.1]),
    (("untraced_step_seconds", 1), 0.0),
    (("ready_seconds", 0, 0), 1.0),
    (("ready_seconds", 0, 1), "-inf"),
    (("ready_seconds", 1), []),
    (("backward_start_seconds", 0), 0.9),
    (("backward_end_seconds", 1), 0.9),
    (("parameters",), []),
    (("gradient_bytes", 0), -1),
    (("gradient_dtypes",), ["float32"]),
    (("buffer_bytes",), -1),
]


@pytest.mark.parametrize(("place", "value"), TRACES)
def test_a_gradient_trace_that_no_steps_can_leave_is_refused(
    folder: Folder, place: tuple[str | int, ...], value: Any
) -> None:
    records = folder.records()
    one = next(i for i, r in enumerate(records) if r["ranks"][0]["gradient_trace"])
    Change(("ranks", 0, "gradient_trace", *place), "replace", value).of(records[one])
    folder.assert_readable_or_refused(lines(records), COMMANDS[0])
    with pytest.raises(StoreError, match=rf"trials.jsonl:{one + 1}: rank 0 has a gradient trace"):
        store.load(folder.path / "changed")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("command",), True),
        (("sweep", "target_loss"), "nan"),
        (("sweep", "implementations"), ["nobody's"]),
        (("sweep", "backends"), ["nobody's"]),
        (("sweep", "group_sizes"), [1, 3]),
        (("sweep", "compared"), ["nothing"]),
    ],
)
def test_an_impossible_sweep_is_refused(
    folder: Folder, place: tuple[str | int, ...], value: Any
) -> None:
    document = json.loads(folder.files[store.SWEEP_FILE])
    Change(place, "replace", value).of(document)
    folder.assert_readable_or_refused(
        {store.SWEEP_FILE: json.dumps(document).encode()}, COMMANDS[0]
    )
    with pytest.raises(StoreError, match=r"sweep\.json: "):
        store.load(folder.path / "changed")


def test_an_impossible_environment_is_refused(folder: Folder) -> None:
    name = folder.headers[1]
    document = json.loads(folder.files[name])
    Change(("versions", 0), "repeat").of(document)
    files = {name: json.dumps(document).encode()}
    folder.assert_readable_or_refused(files, *COMMANDS)
    with pytest.raises(StoreError, match=r"is no name with its value"):
        store.load(folder.path / "changed")


@pytest.mark.parametrize("loss", FLOATS)
def test_losses_may_be_anything(folder: Folder, loss: float | str) -> None:
    """A loss on its way to infinity is measured, stored and read."""
    records = folder.records()
    for record in records:
        for rank in range(len(record["ranks"])):
            Change(("ranks", rank, "timed", "losses"), "flood", loss).of(record)
    folder.assert_readable_or_refused(lines(records), *COMMANDS[:3])
    assert len(store.load(folder.path / "changed").records) == len(records)


def test_a_reason_that_is_no_text_is_shown_in_escapes(folder: Folder) -> None:
    """Names of files may hold any bytes, and a message may hold such a name."""
    records = folder.records()
    records[0] |= {"status": "failed", "reason": "no file \udcff\n\x1b[31m"}
    folder.assert_readable_or_refused(lines(records), *COMMANDS)
    assert store.load(folder.path / "changed").records[0].reason == "no file \\udcff\n\\x1b[31m"


def lines(records: list[dict[str, Any]]) -> dict[str, bytes]:
    return {store.TRIALS_FILE: "".join(f"{sealed(record)}\n" for record in records).encode()}
