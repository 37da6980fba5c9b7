"""One part of the kit: a command with a time limit, so that a failure costs no other part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parent.parent.parent
LAST_LINES = 40
"""Of the output of a part: what is searched for the line that says why it failed."""
NO_TEST_RAN = 5
"""pytest's exit status where a selection holds no test."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What to run, and for how long at most."""

    name: str
    """The group before the first dash can be chosen by itself: `proof-dtypes` by `proof`."""
    command: tuple[str, ...]
    limit_seconds: float
    rows: tuple[str, ...] = ()
    """Rows of behavior to match that hold once the part has passed."""
    results: str | None = None
    """The folder of a sweep that the command makes, below the kit's own."""
    gpus: int = 1
    """The part is skipped on a machine with fewer GPUs; a rehearsal runs it on the CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How a part ended."""

    name: str
    verdict: str
    """passed, failed, timed out, skipped, or nothing to run."""
    seconds: float
    detail: str = ""
    """The first line of the error; of a sweep, how many of its rows ended in which way."""
    rows: tuple[str, ...] = ()


def run(part: Part, folder: Path) -> Verdict:
    """Runs a part in a process group of its own, which is killed at the limit."""
    log = folder / "logs" / f"{part.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    started = monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            resumed(part, folder),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=part.limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    seconds = monotonic() - started
    return Verdict(
        name=part.name,
        verdict=_verdict(status),
        seconds=round(seconds, 1),
        detail=_detail(part, status, log, folder),
        rows=part.rows,
    )


def skipped(part: Part, gpus: int) -> Verdict:
    """The verdict on a part that needs more GPUs than the machine has."""
    reason = f"needs {part.gpus} GPUs; this machine has {gpus}"
    return Verdict(name=part.name, verdict="skipped", seconds=0.0, detail=reason)


def resumed(part: Part, folder: Path) -> tuple[str, ...]:
    """A sweep that was begun goes on; what failed in it is tried again."""
    begun = part.results is not None and (folder / part.results).exists()
    return (*part.command, "--resume") if begun else part.command


def _verdict(status: int | None) -> str:
    if status is None:
        return "timed out"
    if status == NO_TEST_RAN:
        return "nothing to run"
    return "passed" if status == 0 else "failed"


def _detail(part: Part, status: int | None, log: Path, folder: Path) -> str:
    parts = []
    if status is None:
        parts.append(f"not done after {part.limit_seconds:.0f} s")
    if part.results is not None:
        parts += _rows_of(folder / part.results / "trials.jsonl")
    if status != 0 or not parts:
        parts.append(_telling_line(log.read_text(encoding="utf-8", errors="replace"), status))
    return "; ".join(filter(None, parts))[:300]


def _rows_of(file: Path) -> list[str]:
    """How many trials ended in which way, and the first reason of one that did not complete."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ["no trial was recorded"]
    records = [json.loads(line) for line in lines if line.strip().startswith("{")]
    trials = [record for record in records if "status" in record]
    counts = Counter(record["status"] for record in trials)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    reasons = (r.get("reason") for r in trials if r["status"] not in ("completed", "skipped"))
    return [told, *(str(reason).splitlines()[0] for reason in [next(reasons, None)] if reason)]


def _telling_line(text: str, status: int | None) -> str:
    """Of a failure the line that names it, else the last one."""
    lines = [line.strip() for line in text.splitlines()[-LAST_LINES:] if line.strip()]
    if status in (0, None):
        return lines[-1] if lines else ""
    telling = (line for line in lines if line.startswith(("E ", "FAILED", "dpbench:")))
    errors = (line for line in lines if "Error" in line)
    return next(telling, None) or next(errors, None) or (lines[-1] if lines else f"status {status}")


def table(verdicts: Iterable[Verdict]) -> str:
    """The summary in Markdown: part, verdict, seconds, first line of the error, rows."""
    lines = ["| part | verdict | seconds | detail | rows |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.name} | {one.verdict} | {one.seconds:.0f} | {_escaped(one.detail)} | "
        f"{', '.join(one.rows)} |"
        for one in verdicts
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
