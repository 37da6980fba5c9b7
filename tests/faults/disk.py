"""Full, read-only and half-written disks: one line, nothing lost, and --resume goes on."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dpbench import store
from dpbench.store import SweepStore
from tests.cli.command import dpbench
from tests.faults.scenario import CannotTry, Scenario, Try, expect

SYNTHETIC = (*("sweep", "--quiet", "--gpus", "2", "--oversubscribe", "--name", "s"),)
TRIALS = 45


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of its own in memory; raises CannotTry without the right to mount."""
    with tempfile.TemporaryDirectory() as folder:
        done = _mount("-t", "tmpfs", "-o", f"size={size}", "none", folder)
        if done.returncode:
            raise CannotTry(f"mounting needs root: {done.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def full(tries: int) -> Iterator[Try]:
    """The disk fills up somewhere in the records, at another byte every time."""
    for number in range(tries):
        with small_disk(f"{40 + 16 * number}k") as disk:
            stopped = dpbench(*SYNTHETIC, cwd=disk)
            whole = _whole_lines(disk)
            _mount("-o", "remount,size=64m", str(disk))
            finished = dpbench(*SYNTHETIC, "--resume", cwd=disk)
            yield Try(
                expect(
                    **{f"one line, not {stopped.stderr!r}": _is_one_line(stopped.stderr)},
                    it_stopped=stopped.returncode in (1, 2),
                    **{f"resume exits 0: {finished.stderr[-200:]}": finished.returncode == 0},
                    nothing_lost=_whole_lines(disk)[: len(whole)] == whole,
                    every_trial_once=_stored_once(disk),
                )
            )


def read_only(tries: int) -> Iterator[Try]:
    for number in range(tries):
        with small_disk("4m") as disk:
            if number % 2:  # a sweep that is there already
                dpbench(*SYNTHETIC, cwd=disk)
            before = _whole_lines(disk)
            _mount("-o", "remount,ro", str(disk))
            stopped = dpbench(*SYNTHETIC, *(["--resume"] if before else []), cwd=disk)
            yield Try(
                expect(
                    **{f"one line, not {stopped.stderr!r}": _is_one_line(stopped.stderr)},
                    **{f"exits with 2, not {stopped.returncode}": stopped.returncode == 2},
                    nothing_changed=_whole_lines(disk) == before,
                )
            )


def power_cut(tries: int, every: int = 1) -> Iterator[Try]:
    """The record file ends at every byte of its last records in turn, or at some of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few = ("--implementations", "ddp", "--batch-sizes", "4", "--no-charts")
        dpbench(*SYNTHETIC, *few, cwd=folder)
        path = folder / "results/s" / store.TRIALS_FILE
        lines = path.read_bytes().splitlines(keepends=True)
        kept, last = b"".join(lines[:-tries]), b"".join(lines[-tries:])
        for length in range(0, len(last), every):
            path.write_bytes(kept + last[:length])
            yield _survives(path, expected=len(lines) - tries + last[: length + 1].count(b"\n"))


def _survives(path: Path, expected: int) -> Try:
    """Reads what is whole (a line that lacks only its newline is), says so, and goes on from it."""
    read = store.load(path.parent)
    with SweepStore.append_to(path.parent) as results:
        results.append(read.records[0])
    again = store.load(path.parent)
    return Try(
        expect(
            **{f"{expected} records, not {len(read.records)}": len(read.records) == expected},
            same_records=again.records[:expected] == read.records,
            appended=again.records[expected:] == read.records[:1],
            no_warning_left=not again.warnings,
        )
    )


def _mount(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)


def _whole_lines(disk: Path) -> Sequence[bytes]:
    path = disk / "results/s" / store.TRIALS_FILE
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


def _stored_once(disk: Path) -> bool:
    identifiers = [r.trial.trial_id for r in store.load(disk / "results/s").records]
    return len(identifiers) == len(set(identifiers)) == TRIALS


def _is_one_line(err: str) -> bool:
    """One error line, beside the notes on defaults that every sweep prints."""
    notes = ("no CUDA device here", "--data ", "oversubscribed", "resuming: ")
    lines = [line for line in err.splitlines() if not any(note in line for note in notes)]
    return len(lines) == 1 and lines[0].startswith("dpbench: cannot")


SCENARIOS = (
    Scenario(
        name="the disk full",
        promise="one line, whole records kept, --resume finishes",
        tries=5,
        run=full,
    ),
    Scenario(
        name="read-only results",
        promise="one line, exit status 2, nothing changed",
        tries=4,
        run=read_only,
    ),
    Scenario(
        name="power cut at every byte of the last 2 records",
        promise="whole records read, the next one appended after them",
        tries=2,
        run=power_cut,
    ),
)
