"""Run tests of torch's suite on ranks that are forks of this process.

A fork takes milliseconds where torch's own runner starts interpreters for seconds. This process
must have started no thread of torch: it imports, and forks.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from tests.conformance import suite
from tests.conformance.one_device import stand_in

GROUP_TIMEOUT = 20.0
# After one rank has failed the others get this long to say what they saw of it.
GRACE = 2.0
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Outcome:
    """What a test did: `detail` is the reason of a skip or the tracebacks of the ranks.

    A missing one is not in this version of torch.
    """

    name: str
    status: Literal["passed", "failed", "skipped", "missing"]
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Setting:
    """How tests run: `wrapper` is the class in the place of torch's, or torch's own.

    `backend` is that of the default group, and of those that tests make without naming another;
    ranks of a test are killed after `limit` seconds.
    """

    wrapper: type
    backend: str
    world_size: int
    limit: float


def run_together(names: Sequence[str], setting: Setting) -> Iterator[Outcome]:
    """Run tests one after the other on one set of ranks, and on another after each that fails."""
    known = [name for name in names if hasattr(suite.Suite, name)]
    yield from (Outcome(name, "missing") for name in names if name not in known)
    while known:
        with _ranks(known, setting) as (pipes, directory):
            status = ""
            while known and status != "failed":
                started = time.monotonic()
                results = _results(pipes, started + setting.limit, directory)
                outcome = _judged(known.pop(0), results, time.monotonic() - started)
                status = outcome.status
                yield outcome


@contextmanager
def _ranks(names: Sequence[str], setting: Setting) -> Iterator[tuple[list[Connection], Path]]:
    """Forks that run the tests, a pipe from each with its results, and where they put files."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        # torch's file barrier and its tests of files expect these two.
        for needed in ("barrier", "test_dir"):
            (directory / needed).mkdir()
        pipes, processes = [], []
        for rank in range(setting.world_size):
            ours, theirs = FORK.Pipe(duplex=False)
            arguments = (names, rank, setting, directory, theirs)
            processes.append(FORK.Process(target=_rank_main, args=arguments, daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            yield pipes, directory
        finally:
            _end(processes, pipes)


def _results(pipes: list[Connection], deadline: float, directory: Path) -> list[tuple[str, str]]:
    """A status and a detail from each rank, in the order in which they came."""
    results = []
    waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
    while waiting:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        for pipe in ready or list(waiting):
            rank = waiting.pop(pipe)
            log = directory / f"rank{rank}.log"
            try:
                status, detail = pipe.recv() if ready else ("failed", f"too slow\n{_tail(log)}")
            except EOFError:
                status, detail = "failed", f"died\n{_tail(log)}"
            results.append((status, f"rank {rank}: {detail}" if status == "failed" else detail))
            if status == "failed":
                deadline = min(deadline, time.monotonic() + GRACE)
    return results


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:] if log.exists() else ""


def _end(processes: list[ForkProcess], pipes: list[Connection]) -> None:
    for process, pipe in zip(processes, pipes, strict=True):
        process.kill()
        process.join()
        process.close()
        pipe.close()


def _judged(name: str, results: list[tuple[str, str]], seconds: float) -> Outcome:
    failures = [detail for status, detail in results if status == "failed"]
    if failures:
        return Outcome(name, "failed", "\n".join(failures), seconds)
    if all(status == "skipped" for status, _ in results):
        return Outcome(name, "skipped", results[0][1], seconds)
    return Outcome(name, "passed", "", seconds)


def _rank_main(
    names: Sequence[str], rank: int, setting: Setting, directory: Path, pipe: Connection
) -> None:
    log = (directory / f"rank{rank}.log").open("w")
    os.dup2(log.fileno(), sys.stdout.fileno())
    os.dup2(log.fileno(), sys.stderr.fileno())
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"TEMP_DIR": str(directory), "WORLD_SIZE": str(setting.world_size)}
    store = str(directory / "store")
    ends = dist.FileStore(str(directory / "ends"), setting.world_size)
    try:
        is_torchs = setting.wrapper.__module__.startswith("torch.")
        suite.use_backend(setting.backend, has_collectives=is_torchs)
        dist.init_process_group(
            setting.backend,
            init_method=f"file://{store}",
            rank=rank,
            world_size=setting.world_size,
            timeout=timedelta(seconds=suite.GROUP_TIMEOUTS.get(names[0], GROUP_TIMEOUT)),
        )
        stand_in(setting.wrapper, setting.world_size)
        for name in names:
            # The end of a rank whose parent was killed.
            signal.alarm(int(setting.limit) + 10)
            # What a rank that hangs was doing.
            faulthandler.dump_traceback_later(0.9 * setting.limit, file=log)
            reason = suite.call(name, rank, store)
            # Nobody leaves while a peer still communicates; some tests break the group.
            ends.set(f"{name}/{rank}", "")
            ends.wait([f"{name}/{peer}" for peer in range(setting.world_size)])
            pipe.send(("passed", "") if reason is None else ("skipped", reason))
    except BaseException as error:
        summary = " ".join("".join(traceback.format_exception_only(error)).split())
        pipe.send(("failed", f"{summary}\n{traceback.format_exc()}"))
    finally:
        # Destructors of the group might wait for the other ranks.
        os._exit(0)
