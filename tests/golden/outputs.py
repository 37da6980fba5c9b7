"""Runs command lines in an empty folder and writes down what they print, without what varies."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from dpbench.cli.app import run
from tests.launch import synthetic

ROOT = Path(__file__).parents[2]
LONGEST = 60
EXPECTED = Path(__file__).parent / "expected"
TERMINAL = {"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}
_VARIES = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", "<time>"),
    (r"\d{4}-\d\d-\d\d[-_]\d{4,6}", "<stamp>"),
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


def prepare(folder: Path, command_lines: Sequence[str]) -> None:
    """Make the files and results folders that the cases read."""
    shutil.copytree(ROOT / "results" / "examples" / "two-cores", folder / "example")
    (folder / "repository").symlink_to(ROOT)
    (folder / "wrong.toml").write_text("batch-size = 8\nnope = 1\n")
    for command_line in command_lines:
        status, text = output_of(command_line, folder)
        assert status in (0, 1), f"{command_line}: {status}: {text}"
    for records in folder.glob("results/*/*.jsonl"):
        _make_constant(records, folder / "example")


def _make_constant(records: Path, example: Path) -> None:
    """The machine and the times of synthetic records are those of the example."""
    with (example / "trials.jsonl").open() as trials:
        environment_id = json.loads(next(trials))["environment_id"]
    shutil.rmtree(records.parent / "environments")
    shutil.copytree(example / "environments", records.parent / "environments")
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for number, line in enumerate(lines):
        if "duration_seconds" in line:
            line["duration_seconds"] = 1.5
            line["started_utc"] = f"2026-11-01T12:{number // 60:02}:{number % 60:02}.000+00:00"
        if "environment_id" in line:
            line["environment_id"] = environment_id
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
    """In this folder, on a wide terminal; a command leaves its signal handlers in place."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with contextlib.chdir(folder), mock.patch.dict(os.environ, TERMINAL | synthetic.VARIABLES):
        yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def transcript(command_lines: Sequence[str], folder: Path) -> str:
    """Command lines, each with its exit status and its output."""
    parts = []
    for command_line in command_lines:
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
