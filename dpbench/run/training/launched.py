"""A training in ranks that a launcher started: torchrun, dpbench launch, or one shell a rank.

Every rank reads its own command line. Rank 0 writes the run folder and shows what happens. A rank
that cannot go on prints why and exits; the launcher then ends the others.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from dpbench.codec import decode, encode
from dpbench.errors import DpbenchError, TrainingFailed, UsageError
from dpbench.launch.failures import is_of_lost_peer
from dpbench.launch.signed_store import ARRIVAL_SECONDS, SignedStore, given_token
from dpbench.messages import option_words, said_to
from dpbench.options.train import TrainOptions
from dpbench.records.environment import capture, usable_cores
from dpbench.rendezvous.backends import missing_backends
from dpbench.rendezvous.barrier import wait_until
from dpbench.rendezvous.placement import Placement, local_gpu_index
from dpbench.rendezvous.store import open_store
from dpbench.run.interrupts import as_exceptions
from dpbench.run.this_machine import threads_for
from dpbench.run.training.plan import build_spec, place_training, prepare_samples
from dpbench.run.training.running import SAID_BY_RANKS, run_job
from dpbench.specs.training import TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.training.events import EndLine
from dpbench.training.job import TrainingJob
from dpbench.training.rank import train_rank

TIMED_OUT = ("timed out waiting", "did not come within")
"""Words of gloo, and of `barrier`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDescription:
    """The report of a rank on itself."""

    device: str
    host: str
    cores: int
    """Cores of its host."""


class LaunchedRanks:
    """The ranks of one launch, and the store in which they leave values for each other."""

    def __init__(self, placement: Placement, environ: Mapping[str, str]) -> None:
        """Waits for all ranks.

        Raises RuntimeError if the store is not there in time, LaunchError naming the ranks that do
        not come, UsageError for an invalid token or a GPU that is not there.
        """
        self.rank = placement.rank
        token = given_token(environ) or ""
        description = encode(_describe_rank(placement, environ))
        timeout = timedelta(seconds=ARRIVAL_SECONDS)
        of_all = PrefixStore("dpbench train", open_store(placement, environ, timeout))
        # A program may train more than once in one launch, on every rank alike.
        number = of_all.add(f"trainings of {self.rank}", 1)
        store = PrefixStore(f"training {number}", of_all)
        size = placement.world_size
        self._store = SignedStore(store, token, "rank", member=self.rank, members=size)
        described = self._store.wait_for_members(description, ARRIVAL_SECONDS)
        self.descriptions = [decode(RankDescription, text) for text in described]
        """The descriptions of all ranks."""
        hosts = [rank.host for rank in self.descriptions]
        self.preparer = hosts.index(hosts[self.rank])
        """The first rank of this host, which prepares the samples here."""
        self._preparers = sorted({hosts.index(host) for host in hosts})

    def put(self, key: str, **values: object) -> None:
        """Leave values for the other ranks, which json.dumps takes; an `error` with the `kind` of
        exception is raised where they are waited for."""
        self._store.put(key, values)

    def wait_for(self, key: str) -> dict[str, Any]:
        """The values that a rank leaves under the key, once they are there; raises the error that
        it leaves instead, and TrainingFailed if the store is gone."""
        try:
            wait_until(lambda: self._store.get(key) is not None)
            values = self._store.get(key)
        except RuntimeError:  # of torch
            raise TrainingFailed(
                "the launch has ended; look at the output of its first rank"
            ) from None
        if "error" in values:
            raise SAID_BY_RANKS.get(values["kind"], TrainingFailed)(values["error"])
        return dict(values)

    def wait_for_samples(self) -> Path:
        """The folder with the samples of this host, once every host has its own: a download there
        may take longer than the timeout of a process group. Raises what `wait_for` raises."""
        places = {rank: self.wait_for(f"samples {rank}") for rank in self._preparers}
        return Path(places[self.preparer]["folder"])


def train_in_launch(options: TrainOptions) -> tuple[Path, EndLine]:
    """Train as the rank that the environment names.

    Every rank returns the run folder and the end when all have trained, or raises DpbenchError.
    """
    try:
        placement = Placement.read(os.environ)
    except ValueError as error:
        raise UsageError(f"{error}, or unset RANK to train without a launcher") from None
    try:
        ranks = LaunchedRanks(placement, os.environ)
    except RuntimeError as error:
        raise TrainingFailed(str(error)) from None
    if ranks.rank == 0:
        return train_as_first(ranks, options)
    with said_to(lambda message: None):
        return train_as_other(ranks, options)


def _describe_rank(placement: Placement, environ: Mapping[str, str]) -> RankDescription:
    """Report of this rank on itself: its GPU by LOCAL_RANK, if there is any."""
    try:
        index = local_gpu_index(placement.rank, placement.world_size, environ)
    except ValueError as error:
        raise UsageError(str(error)) from None
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


def train_as_first(ranks: LaunchedRanks, options: TrainOptions) -> tuple[Path, EndLine]:
    """Train as rank 0, which decides, writes the run folder and shows what happens."""
    if options.dry_run:
        raise UsageError("--dry-run trains nothing; run it without the launcher")
    spec = spec_of_world(options, ranks.descriptions)
    planned = place_training(options, spec)
    ranks.put("place", folder=str(planned.folder.absolute()), resume=planned.resume)

    def train(job: TrainingJob) -> EndLine:
        ranks.put("samples 0", folder=str(job.prepared))
        return _train(ranks, job)

    environment = capture(cuda=torch.version.cuda)
    trained = run_job(options, planned, environment, train)
    assert trained is not None  # as it is no dry run
    return trained


def train_as_other(ranks: LaunchedRanks, options: TrainOptions) -> tuple[Path, EndLine]:
    """Train as another rank; the first one of each host prepares its samples."""
    spec = spec_of_world(options, ranks.descriptions)
    place = ranks.wait_for("place")
    key = f"samples {ranks.rank}"
    with ExitStack() as stack:
        if ranks.preparer == ranks.rank:
            try:
                folder, _ = stack.enter_context(prepare_samples(options, spec))
            except DpbenchError as error:
                said = f"rank {ranks.rank} on {platform.node()}: {error}"
                ranks.put(key, error=said, kind=type(error).__name__)
                raise
            ranks.put(key, folder=str(folder))
        job = TrainingJob(
            spec=spec,
            run=options.run,
            folder=Path(place["folder"]),
            prepared=None,
            resume=place["resume"],
        )
        with as_exceptions():
            return job.folder, _train(ranks, job)


def _train(ranks: LaunchedRanks, job: TrainingJob) -> EndLine:
    """Train once every host has its samples; if another rank has ended, the error is one line, as
    that rank reports the cause."""
    job = replace(job, prepared=ranks.wait_for_samples())
    try:
        return train_rank(job, ranks.rank)
    except RuntimeError as error:
        words = str(error).partition("\n")[0]
        if is_of_lost_peer(f"{type(error).__name__} {error}"):
            raise TrainingFailed(f"another rank has ended: {words}") from None
        if any(phrase in words.lower() for phrase in TIMED_OUT):  # it hangs, or its link is cut
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
