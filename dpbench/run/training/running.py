"""Run the ranks of a training on this host, and record how it ended."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from itertools import count
from pathlib import Path
from signal import SIGINT

from dpbench import architecture, units
from dpbench.errors import (
    DataError,
    DpbenchError,
    Interrupted,
    StoreError,
    TrainingFailed,
    UsageError,
)
from dpbench.files import folder_inside
from dpbench.launch.machine import inspect_machine
from dpbench.launch.ranks import RanksFailed, remove_scratch, run_ranks
from dpbench.options.train import TrainOptions
from dpbench.records.environment import Environment
from dpbench.report.progress.training import TrainOutput
from dpbench.run.interrupts import as_exceptions
from dpbench.run.this_machine import environment_here
from dpbench.run.training.plan import TrainPlan, plan_here, prepared_samples, resume_words
from dpbench.store.record_log import LineReader
from dpbench.training.checkpoint import latest_checkpoint
from dpbench.training.events import Event, Finished
from dpbench.training.job import TrainingJob
from dpbench.training.rank import train_rank
from dpbench.training.run_folder import RANKS, RunFolder, RunStatus

LONGEST_SECONDS = 365 * 24 * 3600.0
"""A training has no time limit of its own, but timers want a number."""
ON_EVERY_NODE = "the same launcher on every node, with "
"""Before the command of a training whose ranks somebody else has started."""
SAID_BY_RANKS: dict[str, type[DpbenchError]] = {
    **{kind.__name__: kind for kind in (UsageError, DataError, StoreError)},
    **dict.fromkeys(("NotFinite", "OutOfSync", "TrainingFailed", "DpbenchError"), TrainingFailed),
}
"""Errors by the name of what a rank raised, whose message needs no addition."""
POLL_SECONDS = 0.1


def train_here(options: TrainOptions, output: TrainOutput) -> tuple[Path, Finished] | None:
    """Train in processes of its own on this host, and store what happens in the run folder.

    Returns the folder and the end; None for a dry run, which prints the size of a step. Raises
    TrainingFailed, Interrupted, or what a rank refused; each says how to continue.
    """
    machine = inspect_machine()
    plan = plan_here(options, machine, output.note)
    with prepared_samples(options, plan.spec, output.note) as (samples, steps_per_epoch):
        introduce(plan, steps_per_epoch, output)
        if output.dry_run:
            return None
        folder = open_folder(plan, environment_here(machine))
        job = TrainingJob(
            spec=plan.spec,
            run=options.run,
            folder=folder.path.absolute(),
            prepared=samples,
            resume=plan.resume,
        )
        # What the ranks print is beside that of earlier starts.
        ranks = folder_inside(folder.path, RANKS, make=True)
        scratch = next(path for n in count(1) if not (path := ranks / str(n)).exists())
        scratch.mkdir()
        with ended_well(plan, folder, scratch):
            log = folder.follow()
            log.new()  # skips the events before the resumption
            with as_exceptions(), following(log, output.listener(plan.spec)):
                work = partial(train_rank, job)
                finished, *_ = run_ranks(work, plan.spec.process_count, scratch, LONGEST_SECONDS)
    set_ending(plan, folder, finished, output)
    if options.debug:
        output.note(f"--debug: what the ranks printed is in {scratch}")
    else:
        remove_scratch(scratch)
    output.conclude(finished, plan.spec, plan.folder)
    return plan.folder, finished


def introduce(plan: TrainPlan, steps_per_epoch: int, output: TrainOutput) -> None:
    """Print the size of a step, before anything runs."""
    spec = plan.spec
    loaded = architecture.load(spec.workload.architecture)
    items = architecture.items_per_sample(loaded)
    contents = "" if items == 1 else f" of {items:,} {loaded.item}"
    output.introduce(spec, plan.options.run, steps_per_epoch, contents)


def open_folder(plan: TrainPlan, environment: Environment) -> RunFolder:
    """The run folder, made or begun again. Raises StoreError if a training runs in it."""
    command = ["train", *plan.options.words()]
    start = (plan.spec, plan.options.run, command, environment)
    if plan.existing is None:
        return RunFolder.create(plan.folder, *start)
    plan.existing.begin(*start)
    return plan.existing


@contextmanager
def ended_well(plan: TrainPlan, folder: RunFolder, logs: Path | None) -> Iterator[None]:
    """A context that stores why the training in it failed, and adds to the error how to continue.

    What a rank refused leaves no new folder behind. `logs` is the folder of what the ranks print;
    None if another launcher started them.
    """
    status: RunStatus = "failed"
    try:
        yield
        return
    except RanksFailed as failed:
        raised = failed.outcome.raised
        kind = SAID_BY_RANKS.get(raised.kind) if raised else None
        if raised and kind is not None:
            error: DpbenchError = kind(raised.text)
        else:
            error = TrainingFailed(failed.outcome.reason or "the ranks failed")
    except (KeyboardInterrupt, Interrupted) as interrupt:
        status = "interrupted"
        error = Interrupted(getattr(interrupt, "signal_number", SIGINT), "interrupted")
    except DpbenchError as raised_here:
        error = raised_here
    except BaseException as defect:
        folder.set_status("failed", f"{type(defect).__name__}: {defect}")
        raise
    words = str(error)
    refused = isinstance(error, UsageError | DataError)
    if refused and plan.existing is None and not folder.events():
        shutil.rmtree(folder.path)  # nothing was trained: the name stays free
        raise error from None
    if logs is not None and logs.exists() and isinstance(error, TrainingFailed | StoreError):
        words += f"; what the ranks printed is in {logs}"
    try:
        folder.set_status(status, str(error) if status == "failed" else None)
    except StoreError as trouble:  # on a full disk; the first error is still the cause
        words += f"; {trouble}"
    if not refused:
        words += f"; {_next_step(plan, folder, launched=logs is None)}"
    if isinstance(error, Interrupted):
        raise Interrupted(error.signal_number, words) from None
    raise type(error)(words) from None


def set_ending(plan: TrainPlan, folder: RunFolder, finished: Finished, output: TrainOutput) -> None:
    """Store that the training is over, or that --max-steps has stopped it; then say how to
    continue."""
    if finished.epochs >= plan.spec.epochs:
        folder.set_status("completed")
        return
    limit = f"--max-steps {plan.options.max_steps}"
    folder.set_status("interrupted", limit)
    output.note(
        f"{limit}: stopped after {units.counted(finished.steps, 'optimizer step')}, in epoch "
        f"{finished.epochs + 1} of {plan.spec.epochs}; {_next_step(plan, folder)}"
    )


def _next_step(plan: TrainPlan, folder: RunFolder, *, launched: bool = False) -> str:
    checkpoint = latest_checkpoint(folder.checkpoints)
    again = resume_words(plan.options, folder.path)
    command = f"{ON_EVERY_NODE if launched else ''}{again}"
    if checkpoint is None:
        return f"there is no checkpoint yet; to begin again: {command}"
    return f"to go on from {checkpoint.name}: {command}"


@contextmanager
def following(log: LineReader[Event], hear: Callable[[Event], None]) -> Iterator[None]:
    """A context in which a thread passes every new event to `hear`; at the end the last ones too.

    An error of `hear` is raised at the end: training goes on without it.
    """
    ended = threading.Event()

    def pass_on() -> None:
        last = False
        while not last:
            last = ended.wait(POLL_SECONDS)
            for event in log.new():
                hear(event)

    with ThreadPoolExecutor(max_workers=1) as thread:
        # Messages go to the listeners of this context, which a new thread does not have.
        passed_on = thread.submit(copy_context().run, pass_on)
        try:
            yield
        finally:
            ended.set()
    passed_on.result()
