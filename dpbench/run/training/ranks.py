"""The ranks of a training, which run on this host or were started by a launcher: torchrun, dpbench
launch, or one shell a rank. How it ended is recorded.

Every rank of a launcher reads its own command line. One that cannot go on prints why and exits; the
launcher then ends the others.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TextIO

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from dpbench import units
from dpbench.errors import DpbenchError, FileError, Interrupted, TrainingFailed, UsageError
from dpbench.files import LineReader, folder_inside
from dpbench.launch.failures import RanksFailed, is_of_lost_peer
from dpbench.launch.machine import inspect_machine
from dpbench.launch.ranks import remove_scratch, run_ranks
from dpbench.launch.signed_store import ARRIVAL_SECONDS, SignedStore, given_token
from dpbench.messages import option_words, said_to, say
from dpbench.options.train import TrainOptions
from dpbench.records.environment import Environment, capture
from dpbench.rendezvous.barrier import POLL_SECONDS, wait_until
from dpbench.rendezvous.placement import Placement, find_placement
from dpbench.rendezvous.store import open_store
from dpbench.report.progress.training import TrainingProgress
from dpbench.run.interrupts import as_exceptions, interruptible
from dpbench.run.training.preparation import (
    RankDescription,
    describe_rank,
    place_training,
    prepare_samples,
    spec_here,
    spec_of_world,
)
from dpbench.temporary import temporary_variables
from dpbench.training.checkpoint import latest_checkpoint
from dpbench.training.events import EndLine, Event
from dpbench.training.rank import train_rank
from dpbench.training.run_folder import (
    CHECKPOINTS,
    RANKS,
    TrainingJob,
    begin_run,
    follow_log,
    read_manifest,
    set_status,
)

MAX_SECONDS = 365 * 24 * 3600.0
"""A training has no time limit of its own, but timers want a number."""
RANK_ERRORS: dict[str, type[DpbenchError]] = {
    "UsageError": UsageError,
    "FileError": FileError,
    "TrainingFailed": TrainingFailed,
    "DpbenchError": TrainingFailed,
}
"""Errors by the name of what a rank raised, whose message needs no addition."""
TIMEOUT_PHRASES = ("timed out waiting", "did not come within")
"""Words of gloo, and of `barrier`."""


def train(options: TrainOptions, progress: TextIO | None) -> tuple[Path, EndLine]:
    """Train as the rank that the environment names, by the variables of torchrun or those of
    another launcher, or else in ranks of this host. Lines of progress for people go to `progress`.
    Returns the run folder and the end; raises DpbenchError."""
    if "RANK" in os.environ:
        return train_in_launch(options, progress)
    placement = find_placement(os.environ)
    if placement is None:
        return train_here(options, progress)
    with temporary_variables(placement.variables):
        return train_in_launch(options, progress)


def train_here(options: TrainOptions, progress: TextIO | None) -> tuple[Path, EndLine]:
    """Train in processes of its own on this host, and store what happens in the run folder.

    Returns the folder and the end. Raises TrainingFailed, Interrupted, or what a rank refused; each
    says how to continue.
    """
    machine = inspect_machine()
    planned = place_training(options, spec_here(options, machine))

    def run_here(job: TrainingJob) -> EndLine:
        # What the ranks print is beside that of earlier starts.
        number = len(read_manifest(planned.folder).starts)
        scratch = folder_inside(planned.folder, RANKS, make=True) / str(number)
        scratch.mkdir()
        try:
            call = partial(train_rank, job)
            finished, *_ = run_ranks(call, job.spec.process_count, scratch, MAX_SECONDS)
        except RanksFailed as failed:
            cause = failed.cause
            hint = f"; what the ranks printed is in {scratch}"
            kind = RANK_ERRORS.get(cause.own_error) if cause else None
            if cause is None or kind is None:
                raise TrainingFailed(f"{failed}{hint}") from None
            raise kind(cause.message + ("" if kind is UsageError else hint)) from None
        if options.debug:
            say(f"--debug: what the ranks printed is in {scratch}")
        else:
            remove_scratch(scratch)
        return finished

    return run_job(options, planned, machine.environment, run_here, progress)


def train_in_launch(options: TrainOptions, progress: TextIO | None) -> tuple[Path, EndLine]:
    """Train as the rank that the environment names.

    Rank 0 decides, writes the run folder and shows what happens; each rank prepares the samples for
    itself. Every rank returns the run folder and the end when all have trained, or raises
    DpbenchError.
    """
    try:
        placement = Placement.read(os.environ)
        here = describe_rank(placement)
    except ValueError as error:
        raise UsageError(f"{error}, or unset RANK to train without a launcher") from None
    token = given_token(os.environ) or ""
    arrival = timedelta(seconds=ARRIVAL_SECONDS)
    try:
        of_launch = PrefixStore("dpbench train", open_store(placement, arrival))
        # A program may train more than once in one launch, on every rank alike.
        number = of_launch.add(f"trainings of {placement.rank}", 1)
        of_training = PrefixStore(f"training {number}", of_launch)
        store = SignedStore(
            of_training, token, "rank", member=placement.rank, members=placement.world_size
        )
        described = store.wait_for_members(here, ARRIVAL_SECONDS)
    except RuntimeError as error:  # of torch
        raise TrainingFailed(str(error)) from None
    ranks = [RankDescription(*each) for each in described]
    run = partial(train_as_rank, rank=placement.rank)
    if placement.rank == 0:
        planned = place_training(options, spec_of_world(options, ranks))
        store.put("place", {"folder": str(planned.folder.absolute()), "resume": planned.resume})
        return run_job(options, planned, capture(cuda=torch.version.cuda), run, progress)
    with said_to(lambda message: None):
        spec = spec_of_world(options, ranks)
        try:
            wait_until(lambda: store.get("place") is not None)
            place = store.get("place")
        except RuntimeError:  # of torch
            raise TrainingFailed(
                "the launch has ended; look at the output of its first rank"
            ) from None
        folder, resume = Path(place["folder"]), place["resume"]
        job = TrainingJob(spec=spec, run=options.run, folder=folder, prepared=None, resume=resume)
        with prepare_samples(options, spec) as (prepared, _), as_exceptions():
            return folder, run(replace(job, prepared=prepared))


def train_as_rank(job: TrainingJob, rank: int) -> EndLine:
    """Train; if another rank has ended, the error is one line, as that rank reports the cause."""
    try:
        return train_rank(job, rank)
    except RuntimeError as error:
        words = str(error).partition("\n")[0]
        if is_of_lost_peer(f"{type(error).__name__} {error}"):
            raise TrainingFailed(f"another rank has ended: {words}") from None
        # It hangs, or its link is cut.
        if any(phrase in words.lower() for phrase in TIMEOUT_PHRASES):
            raise TrainingFailed(f"another rank did not answer: {words}") from None
        raise


def run_job(
    options: TrainOptions,
    planned: TrainingJob,
    environment: Environment,
    run: Callable[[TrainingJob], EndLine],
    progress: TextIO | None,
) -> tuple[Path, EndLine]:
    """Prepare the samples of a planned job, run its ranks, and store what happens. Returns and
    raises as `train_here`."""
    path, epochs = planned.folder, planned.spec.epochs
    with prepare_samples(options, planned.spec) as (samples, _):
        begin_run(planned, options.command("train"), environment)
        with ended_well(options, path):
            log = follow_log(path)
            log.new()  # skips the events before the resumption
            shown = TrainingProgress(
                planned,
                progress,
                quiet=options.quiet,
                memory=options.memory,
                json_lines=options.json_lines,
                as_json=options.as_json,
            )
            goes_on = partial(_next_step, options, path)
            with interruptible(goes_on), following(log, shown.hear):
                finished = run(replace(planned, folder=path.absolute(), prepared=samples))
    if finished.epochs >= epochs:
        set_status(path, "completed")
    else:
        limit = option_words("max_steps", options.max_steps)
        set_status(path, "interrupted", limit)
        say(
            f"{limit}: stopped after {units.counted(finished.steps, 'optimizer step')}, in epoch "
            f"{finished.epochs + 1} of {epochs}; {_next_step(options, path)}"
        )
    return path, finished


@contextmanager
def ended_well(options: TrainOptions, folder: Path) -> Iterator[None]:
    """A context that stores how the training in it ended, and adds to an error how to continue.

    What a rank refused leaves no new folder behind.
    """
    try:
        yield
    except UsageError as refused:
        if len(read_manifest(folder).starts) > 1 or follow_log(folder).new():
            set_status(folder, "failed", str(refused))
        else:
            shutil.rmtree(folder)  # nothing was trained: the name stays free
        raise
    except Interrupted:
        set_status(folder, "interrupted")
        raise
    except DpbenchError as failed:
        words = str(failed)
        try:
            set_status(folder, "failed", words)
        except FileError as trouble:  # on a full disk; the first error is still the cause
            words += f"; {trouble}"
        failed.args = (f"{words}; {_next_step(options, folder)}",)
        raise
    except BaseException as defect:
        set_status(folder, "failed", f"{type(defect).__name__}: {defect}")
        raise


def _next_step(options: TrainOptions, folder: Path) -> str:
    """How to go on with a training that has not completed."""
    again = options.command("train").again(name=None, resume=str(folder))
    launcher = "the same launcher on every node, with " if "RANK" in os.environ else ""
    command = f"{launcher}{again.text}"
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
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
