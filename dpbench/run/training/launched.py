"""A training in ranks that a launcher started: torchrun, dpbench launch, or one shell a rank.

Every rank reads its own command line. A rank that cannot go on prints why and exits; the launcher
then ends the others.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from dpbench.errors import TrainingFailed, UsageError
from dpbench.launch.failures import is_of_lost_peer
from dpbench.launch.signed_store import ARRIVAL_SECONDS, SignedStore, given_token
from dpbench.messages import option_words, said_to
from dpbench.options.train import TrainOptions
from dpbench.records.environment import capture, usable_cores
from dpbench.rendezvous.backends import missing_backends
from dpbench.rendezvous.barrier import wait_until
from dpbench.rendezvous.placement import Placement, local_gpu_index
from dpbench.rendezvous.store import open_store
from dpbench.report.progress.training import TrainingProgress
from dpbench.run.interrupts import as_exceptions
from dpbench.run.this_machine import threads_for
from dpbench.run.training.plan import build_spec, place_training, prepare_samples
from dpbench.run.training.running import run_job
from dpbench.specs.training import TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.training.events import EndLine
from dpbench.training.rank import train_rank
from dpbench.training.run_folder import TrainingJob

TIMEOUT_PHRASES = ("timed out waiting", "did not come within")
"""Words of gloo, and of `barrier`."""


class RankDescription(NamedTuple):
    """The report of a rank on itself."""

    device: str
    host: str
    cores: int
    """Cores of its host."""


def train_in_launch(options: TrainOptions, progress: TrainingProgress) -> tuple[Path, EndLine]:
    """Train as the rank that the environment names.

    Rank 0 decides, writes the run folder and shows what happens; each rank prepares the samples for
    itself. Every rank returns the run folder and the end when all have trained, or raises
    DpbenchError.
    """
    try:
        placement = Placement.read(os.environ)
        here = describe_rank(placement, os.environ)
    except ValueError as error:
        raise UsageError(f"{error}, or unset RANK to train without a launcher") from None
    try:
        store = store_of_ranks(placement)
        described = store.wait_for_members(here, ARRIVAL_SECONDS)
    except RuntimeError as error:  # of torch
        raise TrainingFailed(str(error)) from None
    ranks = [RankDescription(*each) for each in described]
    train = partial(train_as_rank, rank=placement.rank)
    if placement.rank == 0:
        planned = place_training(options, spec_of_world(options, ranks))
        store.put("place", {"folder": str(planned.folder.absolute()), "resume": planned.resume})
        return run_job(options, planned, capture(cuda=torch.version.cuda), train, progress)
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
            return folder, train(replace(job, prepared=prepared))


def store_of_ranks(placement: Placement) -> SignedStore:
    """The store in which the ranks of this training leave values for each other.

    Raises RuntimeError if it is not there in time, UsageError for an invalid token.
    """
    token = given_token(os.environ) or ""
    of_all = PrefixStore(
        "dpbench train", open_store(placement, os.environ, timedelta(seconds=ARRIVAL_SECONDS))
    )
    # A program may train more than once in one launch, on every rank alike.
    store = PrefixStore(f"training {of_all.add(f'trainings of {placement.rank}', 1)}", of_all)
    return SignedStore(store, token, "rank", member=placement.rank, members=placement.world_size)


def describe_rank(placement: Placement, environ: Mapping[str, str]) -> RankDescription:
    """Report of this rank on itself: its GPU by LOCAL_RANK, if there is any.

    Raises ValueError for variables that name no GPU, UsageError for one that is not here.
    """
    index = local_gpu_index(placement.rank, placement.world_size, environ)
    gpus = torch.cuda.device_count()
    if gpus and index >= gpus:
        raise UsageError(
            f"rank {placement.rank}: there is no GPU {index}, but {gpus}; start fewer processes a "
            "host"
        )
    return RankDescription(
        device=f"cuda:{index}" if gpus else "cpu",
        host=f"{environ.get('GROUP_RANK', '')} {platform.node()}".strip(),
        cores=usable_cores(),
    )


def train_as_rank(job: TrainingJob, rank: int) -> EndLine:
    """Train; if another rank has ended, the error is one line, as that rank reports the cause."""
    try:
        return train_rank(job, rank)
    except RuntimeError as error:
        words = str(error).partition("\n")[0]
        if is_of_lost_peer(f"{type(error).__name__} {error}"):
            raise TrainingFailed(f"another rank has ended: {words}") from None
        if any(
            phrase in words.lower() for phrase in TIMEOUT_PHRASES
        ):  # it hangs, or its link is cut
            raise TrainingFailed(f"another rank did not answer: {words}") from None
        raise


def spec_of_world(options: TrainOptions, ranks: Sequence[RankDescription]) -> TrainingSpec:
    """The training with a replica on each rank. Raises UsageError."""
    size = len(ranks)
    leave_out = ", or run dpbench train without a launcher"
    if options.gpus is not None:
        raise UsageError(
            f"{option_words('gpus', options.gpus)}: the launcher has started {size} "
            f"{'process' if size == 1 else 'processes'} and says which device each takes; leave "
            f"it out{leave_out}"
        )
    if size > 1 and IMPLEMENTATIONS[options.implementation].one_process:
        raise UsageError(
            f"{option_words('implementation', options.implementation)}: one process drives all its "
            f"replicas, but the launcher has started {size}; take ddp{leave_out}"
        )
    counts = Counter(rank.host for rank in ranks)
    tightest = min(ranks, key=lambda rank: rank.cores / counts[rank.host])
    threads = threads_for(
        options.threads, tightest.cores, counts[tightest.host], oversubscribe=options.oversubscribe
    )
    spec = build_spec(options, [rank.device for rank in ranks], threads)
    reason = missing_backends().get(spec.backend)
    if spec.backend == "shm" and len(counts) > 1:
        reason = f"it is for the ranks of one host, and these are on {len(counts)}"
    if reason:
        raise UsageError(f"{option_words('backend', spec.backend)}: {reason}")
    return spec
