"""Results folders that were damaged or changed: read or refused, never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpbench import store
from dpbench.analysis.metrics import METRICS
from dpbench.cli.app import run  # noqa: F401
from dpbench.errors import StoreError
from dpbench.report.columns import COLUMNS
from tests.fuzz import folders
from tests.fuzz.commands import assert_ends_well
from tests.fuzz.mutations import Change, changes, damaged, sealed

import os
EXAMPLES = int(os.environ.get("FUZZ", "60"))
quick = settings(
    max_examples=EXAMPLES, derandomize="FUZZ" not in os.environ, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)
METRIC_NAMES = ",".join(METRICS)
COMMANDS = [
    f"report changed --no-charts --columns {','.join(c.key for c in COLUMNS)}",
    "report changed --no-charts --json",
    "explain changed --no-charts",
    "explain changed --no-charts --json",
    f"compare good changed --metric {METRIC_NAMES}",
    f"compare changed good --force --json --metric {METRIC_NAMES}",
    "compare changed changed:implementation=ddp --format html",
    f"check changed --baseline good --metric {METRIC_NAMES} --force --junit j --markdown m",
    "check good --baseline changed --json --strict --benchmark-action a --metric efficiency",
    "calibrate changed",
    "calibrate changed --json",
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    folders.make(folder)
    return folder


RECORD = None
LINES = None


def prepared(here: Path) -> list[dict[str, Any]]:
    return [json.loads(l) for l in (here / "good" / "trials.jsonl").read_text().splitlines()]


def reads(here: Path, write: Callable[[Path], None], commands: list[str]) -> None:
    changed = here / "changed"
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(here / "good", changed)
    write(changed)
    try:
        store.load(changed)
    except StoreError:
        commands = commands[:1]
    for c in commands:
        assert_ends_well(c.split(), here)


@quick
@given(data=st.data())
def test_values(here: Path, data: st.DataObject) -> None:
    records = prepared(here)
    n = data.draw(st.integers(1, 3))
    for _ in range(n):
        which = data.draw(st.one_of(st.just(range(len(records))), st.integers(0, len(records)-1).map(lambda i: [i])))
        change = data.draw(changes(records[which[0]]))
        for i in which:
            change.of(records[i])
    commands = COMMANDS if "FUZZ" in os.environ else [data.draw(st.sampled_from(COMMANDS))]
    text = "".join(sealed(r) + "\n" for r in records)
    reads(here, lambda f: (f / "trials.jsonl").write_text(text), commands)


@quick
@given(data=st.data())
def test_bytes(here: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["trials.jsonl", "sweep.json", "env"]))
    def path(f): return next((f / "environments").iterdir()) if name == "env" else f / name
    content = data.draw(damaged(path(here / "good").read_bytes()))
    reads(here, lambda f: path(f).write_bytes(content), COMMANDS)


@quick
@given(data=st.data())
def test_headers(here: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["sweep.json", "env"]))
    def path(f): return next((f / "environments").iterdir()) if name == "env" else f / name
    document = json.loads(path(here / "good").read_text())
    for c in data.draw(st.lists(changes(document), min_size=1, max_size=2)):
        c.of(document)
    reads(here, lambda f: path(f).write_text(json.dumps(document)), COMMANDS)
