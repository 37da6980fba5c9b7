"""Runs command lines in an empty folder and writes down what they print, without what varies.

A file in expected/ has command lines, as `$ dpbench …`, and below each what it prints. They read
`example`, a copy of the sweep that is shipped, and the folders that PREPARED makes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from dpbench.cli.app import run
from dpbench.records.trial import HostLoad, Status, TrialRecord
from tests.analysis.builders import QUIET, noisy_sweep, record, runs, steps_of, trial
from tests.analysis.diagnosis.scripts import script_sweep
from tests.builders import HERE
from tests.cli.stored import stored
from tests.launch import synthetic

ROOT = Path(__file__).parents[2]
LONGEST = 60
EXPECTED = Path(__file__).parent / "expected"
FILES = {
    "wrong.toml": "batch-size = 8\nnope = 1\n",
    "file.py": "mine\n",
    "my_model.py": "\ndef make(): ...\n",
    "train.py": "'a script'\n",
}
MADE: dict[str, list[TrialRecord]] = {
    "noisy": noisy_sweep(),
    "failed": [record(trial(), reason="rank 1 ended with signal 9")],
    "nothing": [],
    "one": runs(trial(), QUIET[1:2]),
    "unmeasured": [record(trial(), status=Status.SKIPPED, reason="no CUDA device")],
    "skipped": [
        *runs(trial(), QUIET),
        record(trial(backend="nccl"), status=Status.SKIPPED, reason="no CUDA device"),
    ],
    "script": [
        one
        for number in range(4)
        for one in script_sweep(number, single=0.01 * 4**number, finds_unused=True)
    ],
    # Whole repetitions are slow: the ranks' wait for each other stays 20 % of a step.
    "busy": [
        replace(one, host_load=HostLoad(cores=2, during=1.8, stolen=0.0))
        for number, slower in enumerate((1.0, 9.0, 0.6))
        for one in (
            steps_of("single", [0.01], repetition=number),
            steps_of("ddp", [0.015 * slower] * 2, [0.012 * slower] * 2, repetition=number),
        )
    ],
}
"""Results by hand, in made/."""
SHORT = "--warmup 1 --steps 4 --no-charts --quiet"
SWEEP = f"sweep {SHORT} --gpus 2 --threads 1"

PREPARED = (
    f"{SWEEP} --name base --implementations ddp,torch-ddp --backends gloo,shm --batch-sizes 16,64"
    " --repetitions 3",
    f"{SWEEP} --name settings --arch mlp --implementations ddp,local-sgd --backends gloo"
    " --batch-sizes 32 --dtype f32,bf16 --sync-every 1,4 --accumulate 1,2 --repetitions 2",
    f"{SWEEP} --name strong --scaling strong --implementations ddp --backends gloo"
    " --batch-sizes 64 --repetitions 2",
    f"{SWEEP} --name failing --implementations dp,ddp --backends gloo,nccl --batch-sizes 8"
    " --repetitions 2",
    "comm --backends gloo --gpus 2 --sizes 4KB,64KB --samples 5 --quiet --name collectives",
)
"""Run once, in this order; they make the folders that the others read."""
TERMINAL = {"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}
_VARIES = (
    (r"(?m)^(Measured: .+ repetitions?; ).+", r"\1<machine>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", "<time>"),
    (r"\d{8}-\d{6}\b", "<stamp>"),
    (r"(?<![.\w])(?=\d*[a-f])[0-9a-f]{12,64}\b", "<hash>"),
    (r"\b(\d+(\.\d+)? (s|ms|min|h) ?)+\b(?= (of|for|in all|together|at the))", "<duration>"),
    (r"(?<=environment than this one: ).*?(?=\. --force)", "<differences>"),
)
"""What differs between two runs of one command on one machine, or between two machines."""
_NUMBER = re.compile(r"-?(?<![\w.])\d+(\.\d+(e[+-]\d+)?|e[+-]\d+)(?!\w|\.\d)")
_DIGITS = 6
"""Further digits depend on the order in which a processor's vector units add."""
_SMALLEST = 1e-12
"""A smaller number is what such rounding leaves of 0."""


def expected(name: str) -> str:
    return (EXPECTED / f"{name}.txt").read_text()


def prepare(folder: Path) -> None:
    """Make the files and results folders that the command lines read."""
    shutil.copytree(ROOT / "results" / "examples" / "two-cores", folder / "example")
    (folder / "repository").symlink_to(ROOT)
    (folder / "empty").mkdir()
    shutil.copy(ROOT / "results/published/torch_ddp_rtx3090.csv", folder / "table.csv")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for name, records in MADE.items():
        stored(folder / "made" / name, records)
    stored(folder / "made/elsewhere", MADE["skipped"], replace(HERE, cores=3))
    alike, unlike, absent = trial(), trial("ddp", "shm"), trial("ddp", "nccl")
    skipped = record(absent, status=Status.SKIPPED, reason="no CUDA device")
    others = trial("dp", "threads"), trial("single", "none")
    before = [runs(one, QUIET) for one in (alike, unlike, *others)]
    after = [runs(alike, QUIET), runs(trial("torch-ddp"), QUIET), [record(unlike, reason="killed")]]
    for name, groups in (("before", before), ("after", after)):
        stored(folder / "made" / name, [skipped, *itertools.chain(*groups)], HERE)
    for command_line in PREPARED:
        status, text = output_of(command_line, folder)
        assert status in (0, 1), f"{command_line}: {status}: {text}"
    for records in folder.glob("results/*/*.jsonl"):
        _make_constant(records, folder / "example")


def _make_constant(records: Path, example: Path) -> None:
    """The machine and the times of synthetic records are those of the example."""
    with (example / "trials.jsonl").open() as trials:
        environment_ids = json.loads(next(trials))["environment_ids"]
    shutil.rmtree(records.parent / "environments")
    shutil.copytree(example / "environments", records.parent / "environments")
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for number, line in enumerate(lines):
        if "duration_seconds" in line:
            line["duration_seconds"] = 1.5
            line["started_utc"] = f"2026-11-01T12:{number // 60:02}:{number % 60:02}.000+00:00"
        if "environment_ids" in line:
            line["environment_ids"] = environment_ids
    records.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def output_of(command_line: str, folder: Path) -> tuple[int, str]:
    """The exit status and what was printed: stdout, then stderr."""
    out, err = io.StringIO(), io.StringIO()
    with _at(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(shlex.split(command_line))
    printed = out.getvalue()
    if printed.startswith(("{", "[")):
        printed = _by_row(json.loads(printed))
    said = "".join(f"! {line}\n" for line in err.getvalue().splitlines())
    return status, _condensed(_constant(printed, folder)) + _constant(said, folder)


@contextlib.contextmanager
def _at(folder: Path) -> Iterator[None]:
    """In this folder, on a wide terminal and two cores; a command leaves its signal handlers."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, TERMINAL),
        synthetic.in_use(),
        mock.patch("dpbench.records.environment.usable_cores", return_value=2),
    ):
        yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def transcript(name: str, folder: Path) -> str:
    """The command lines of an expected file, each with its exit status and its output."""
    parts = []
    for command_line in re.findall(r"^\$ dpbench (.*)$", expected(name), re.MULTILINE):
        status, text = output_of(command_line, folder)
        parts.append(f"$ dpbench {command_line}\n{text.rstrip()}\n[{status}]\n")
    return "\n".join(parts)


def _by_row(answer: Any) -> str:
    """An answer in JSON with a row a line, without the keys that have no value."""
    parts = answer.items() if isinstance(answer, dict) else [("rows", answer)]
    lines = []
    for key, value in parts:
        rows = value if isinstance(value, list) else [value]
        lines += [f"{key}: {json.dumps(_valued(row), ensure_ascii=False)}" for row in rows]
    return "".join(f"{line}\n" for line in lines)


def _valued(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _valued(each) for key, each in value.items() if each is not None}
    return [*map(_valued, value)] if isinstance(value, list) else value


def _condensed(text: str) -> str:
    """Keep the beginning of long output, and count the rest."""
    lines = text.splitlines()
    if len(lines) <= LONGEST:
        return text
    kept = "".join(f"{line}\n" for line in lines[:LONGEST])
    return f"{kept}… {len(lines) - LONGEST} more lines\n"


def _constant(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "<folder>").replace(str(ROOT), "<repository>")
    for pattern, mark in _VARIES:
        text = re.sub(pattern, mark, text)
    return "".join(f"{_NUMBER.sub(_rounded, line).rstrip()}\n" for line in text.splitlines())


def _rounded(number: re.Match[str]) -> str:
    """A number with a fraction, to the digits that are the same on every processor."""
    value = float(number[0])
    if abs(value) < _SMALLEST:
        return "0.0"
    digits = re.sub(r"e.*|\D", "", number[0]).lstrip("0")
    return number[0] if len(digits) <= _DIGITS else f"{value:.{_DIGITS}g}"
