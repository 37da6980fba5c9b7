"""Runs the ranks of a training on this host, and records how it ended."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.machine import inspect_machine
from dpbench.launch.ranks import RanksFailed, remove_scratch, run_ranks
from dpbench.messages import say, warn
from dpbench.records.environment import Environment
from dpbench.report.progress.training import TrainingListener, TrainOutput
from dpbench.run.interrupts import as_exceptions
from dpbench.run.this_machine import environment_here
from dpbench.run.training.arguments import TrainRequest
from dpbench.run.training.place import resume_words
from dpbench.run.training.preparation import Samples, TrainPlan, plan_here, samples_of
from dpbench.specs.training import TrainingSpec
from dpbench.store.record_log import LineReader
from dpbench.training.checkpoint_folder import latest_checkpoint
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


def run_here(
    plan: TrainPlan, samples: Samples, environment: Environment, listener: TrainingListener
) -> Finished:
    """Trains in processes of its own, and stores what happens in the run folder.

    Raises TrainingFailed, Interrupted, or what a rank refused; each says how to go on.
    """
    with open_folder(plan, environment) as folder:
        job = job_of(plan, samples, folder)
        scratch = _next_attempt(folder)
        with ended_well(plan, folder, scratch), listener:
            log = folder.follow()
            log.new()  # skips the events before the resumption
            with (
                nullcontext() if plan.request.embedded else as_exceptions(),
                following(log, listener.hear),
            ):
                work = partial(train_rank, job)
                finished, *_ = run_ranks(work, plan.spec.process_count, scratch, LONGEST_SECONDS)
        set_ending(plan, folder, finished)
        if plan.run.debug:
            say(f"--debug: what the ranks printed is in {scratch}")
        else:
            remove_scratch(scratch)
        return finished


@contextmanager
def open_folder(plan: TrainPlan, environment: Environment) -> Iterator[RunFolder]:
    """The run folder, made or begun again; inside, no other training uses it.

    Raises StoreError if one does, and leaves what it wrote alone.
    """
    request, existing = plan.request, plan.place.existing
    # What the machine, the launcher or the data decided is stored too: they may be others later.
    decided = {
        "gpus": plan.spec.group_size,
        "threads": plan.spec.threads_per_replica,
        "epochs": plan.spec.epochs,
        "gamma": plan.spec.gamma,
    }
    given = {n: v for n, v in request.options.dump(all_values=True).items() if v is not None}
    start = (plan.spec, plan.run, request.command, environment, decided | given)
    folder = existing or RunFolder.create(plan.place.path, *start)
    with folder.held():
        if existing is not None:
            existing.begin_again(*start)
            first = existing.header.starts[0].environment
            if differences := environment.differences_from(first):
                warn(
                    f"{existing.path} began elsewhere, and numbers may differ: "
                    f"{'; '.join(differences)}"
                )
        yield folder


def job_of(plan: TrainPlan, samples: Samples, folder: RunFolder) -> TrainingJob:
    return TrainingJob(
        spec=plan.spec,
        run=plan.run,
        folder=folder.path.absolute(),
        prepared=samples.folder,
        resume=plan.place.resume,
    )


@contextmanager
def ended_well(plan: TrainPlan, folder: RunFolder, logs: Path | None) -> Iterator[None]:
    """Writes down why the training in the block did not end well, and says how to go on.

    `logs` is what the ranks print; None where they are not dpbench's own to start.
    """
    try:
        yield
    except RanksFailed as failed:
        error = _error(failed.outcome)
        raise _failed(error, plan, folder, logs) from None
    except (KeyboardInterrupt, Interrupted) as interrupt:
        trouble = _set_status(folder, RunStatus.INTERRUPTED)
        number = getattr(interrupt, "signal_number", SIGINT)
        step = _next_step(folder, launched=logs is None)
        raise Interrupted(number, f"interrupted{trouble}; {step}") from None
    except DpbenchError as error:
        raise _failed(error, plan, folder, logs) from None
    except BaseException as error:
        _set_status(folder, RunStatus.FAILED, f"{type(error).__name__}: {error}")
        raise


def set_ending(plan: TrainPlan, folder: RunFolder, finished: Finished) -> None:
    """Writes down that it is over; or that --max-steps has stopped it, and says how to go on."""
    if finished.epochs >= plan.spec.epochs:
        folder.set_status(RunStatus.COMPLETED)
        return
    limit = f"--max-steps {plan.run.max_steps}"
    folder.set_status(RunStatus.INTERRUPTED, limit)
    say(
        f"{limit}: stopped after {units.counted(finished.steps, 'optimizer step')}, in epoch "
        f"{finished.epochs + 1} of {plan.spec.epochs}; {_next_step(folder)}"
    )


def _failed(
    error: DpbenchError, plan: TrainPlan, folder: RunFolder, logs: Path | None
) -> DpbenchError:
    """The error with what to do next; what a rank refused leaves no new folder behind."""
    refused = isinstance(error, UsageError | DataError)
    if refused and plan.place.existing is None and not folder.events():
        shutil.rmtree(folder.path)  # nothing was trained: the name stays free
        return error
    trouble = _set_status(folder, RunStatus.FAILED, str(error))
    if refused:
        return type(error)(f"{error}{trouble}")
    kept = f"; what the ranks printed is in {logs}" if logs and logs.exists() else ""
    return type(error)(f"{error}{kept}{trouble}; {_next_step(folder, launched=logs is None)}")


def _set_status(folder: RunFolder, status: RunStatus, reason: str | None = None) -> str:
    """Text to add to the error that ended the training, which is the first cause."""
    try:
        folder.set_status(status, reason)
    except StoreError as error:
        return f"; {error}"
    return ""


def _error(outcome: TrialOutcome) -> DpbenchError:
    """The error that a rank raised, as the same one here."""
    raised = outcome.raised
    if raised and (kind := SAID_BY_RANKS.get(raised.kind)):
        return kind(raised.text)
    return TrainingFailed(outcome.reason or "the ranks failed")


def _next_step(folder: RunFolder, *, launched: bool = False) -> str:
    checkpoint = latest_checkpoint(folder.checkpoints)
    command = f"{ON_EVERY_NODE if launched else ''}{resume_words(folder)}"
    if checkpoint is None:
        return f"there is no checkpoint yet; to begin again: {command}"
    return f"to go on from {checkpoint.name}: {command}"


def _next_attempt(folder: RunFolder) -> Path:
    """A folder for what the ranks print, beside those of earlier starts."""
    ranks = folder_inside(folder.path, RANKS, make=True)
    paths = (ranks / str(number) for number in count(1))
    path = next(path for path in paths if not os.path.lexists(path))
    path.mkdir()
    return path


POLL_SECONDS = 0.1


@contextmanager
def following(log: LineReader[Event], hear: Callable[[Event], None]) -> Iterator[None]:
    """Inside, a thread passes every new event to `hear`; at the end the last ones are passed too.

    An error of `hear` ends the passing on, and is raised at the end: the training is not its
    business.
    """
    ended = threading.Event()
    errors: list[Exception] = []

    def pass_on() -> None:
        try:
            last = False
            while not last:
                last = ended.wait(POLL_SECONDS)
                for event in log.new():
                    hear(event)
        except Exception as error:
            errors.append(error)

    # Messages go to the listeners of this context, which a new thread does not have.
    thread = threading.Thread(target=copy_context().run, args=(pass_on,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


def introduce_plan(request: TrainRequest, output: TrainOutput) -> None:
    """Says how large a step of the training would be; nothing is trained."""
    plan = plan_here(request, inspect_machine())
    with samples_of(plan) as ready:
        introduce(plan, ready, output)


def train_here(request: TrainRequest, output: TrainOutput) -> tuple[TrainPlan, Finished]:
    """Trains on this host; raises DpbenchError."""
    machine = inspect_machine()
    plan = plan_here(request, machine)
    if finished := plan.completed():
        say(f"{plan.place.path} is complete; --epochs {plan.spec.epochs + 1} would train on")
        return plan, finished
    with samples_of(plan) as ready:
        introduce(plan, ready, output)
        now = environment_here(machine)
        listener = output.listener(plan.spec, plan.run, ready.steps_per_epoch)
        return plan, run_here(plan, ready, now, listener)


def introduce(plan: TrainPlan, ready: Samples, output: TrainOutput) -> None:
    """Says how large a step is, before anything runs."""
    spec = plan.spec
    output.introduce(spec, plan.run, ready.steps_per_epoch, contents_of(spec))
    if spec.effective_batch_size > ready.count and spec.accumulation_steps > 1:
        say(
            f"--accumulate {spec.accumulation_steps}: one step would take "
            f"{spec.effective_batch_size:,} samples and there are {ready.count:,}, so each epoch "
            "is one smaller step"
        )


def contents_of(spec: TrainingSpec) -> str:
    """Writes " of 64 tokens" of samples that hold several items, which speeds count."""
    loaded = architecture.load(spec.workload.architecture)
    count = architecture.items_per_sample(loaded)
    return "" if count == 1 else f" of {count:,} {loaded.item}"
