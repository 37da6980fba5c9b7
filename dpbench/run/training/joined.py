"""A training in ranks that a launcher started: torchrun, dpbench launch, or one shell a rank.

Rank 0 reads the options and decides, and the others do what it orders: nothing is decided twice,
and only rank 0 speaks and writes.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from dpbench.architecture import make_importable
from dpbench.data.registry import is_function
from dpbench.data.user_code import is_same_code
from dpbench.errors import DpbenchError, Interrupted, TrainingFailed, UsageError
from dpbench.launch.rank import speaks_of_lost_peer
from dpbench.messages import printable, said_to, say
from dpbench.options.bridge import as_typed
from dpbench.options.train import TrainOptions
from dpbench.records import environment
from dpbench.rendezvous.available_backends import (
    available_backends,
    gpu_platform,
    local_device,
    unsupported_accelerator,
)
from dpbench.rendezvous.launch_variables import LaunchVariables
from dpbench.report.progress.training import TrainOutput
from dpbench.run.interrupts import as_exceptions
from dpbench.run.this_machine import threads_for
from dpbench.run.training.arguments import TrainArguments, TrainRequest
from dpbench.run.training.orders import Agreed, Launch, Orders, RankDescription
from dpbench.run.training.preparation import (
    TrainPlan,
    build_spec,
    device_request,
    plan_training,
    prepared_samples,
    samples_of,
)
from dpbench.run.training.running import (
    ON_EVERY_NODE,
    ended_well,
    following,
    introduce,
    job_of,
    open_folder,
    set_ending,
)
from dpbench.specs.training import TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.training.events import Finished
from dpbench.training.job import TrainingJob
from dpbench.training.rank import train_rank

TIMED_OUT = "timed out waiting"  # gloo's words
LONGEST_SHOWN = 100
"""Most characters shown of a name from another host."""
STORE_SECONDS = 120.0
"""Time to look for the launch's store where --timeout is wrong, which rank 0 reports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """The end of a training, the same on every rank."""

    finished: Finished
    folder: Path
    plan: TrainPlan | None
    """On rank 0."""


def join(asked: TrainArguments, output: TrainOutput) -> Joined:
    """Trains as the rank that the environment names; every rank returns when all have trained.

    Raises what ended it: DpbenchError, or on other ranks than 0 Agreed where rank 0 raises that
    error too.
    """
    try:
        variables = LaunchVariables.read(os.environ)
    except ValueError as error:
        raise UsageError(f"{error}, or unset RANK to train without a launcher") from None
    try:
        launch = Launch(variables, os.environ, _store_seconds(asked))
    except RuntimeError as error:
        raise TrainingFailed(str(error)) from None
    launch.report(describe_rank(variables))
    if launch.rank == 0:
        return _lead(launch, asked, output)
    with said_to(lambda message: None):
        return _follow(launch, asked)


def describe_rank(variables: LaunchVariables) -> RankDescription:
    """Report of this rank on itself: its GPU by LOCAL_RANK, if there is any."""
    device, trouble = "cpu", None
    try:
        index = local_device(variables.rank, variables.world_size, os.environ)
        gpus = torch.cuda.device_count()
        if gpus:
            device = f"cuda:{index}"
        if gpus and index >= gpus:
            trouble = f"there is no GPU {index}, but {gpus}; start fewer processes a host"
    except ValueError as error:
        trouble = str(error)
    host = f"{os.environ.get('GROUP_RANK', '')} {platform.node()}".strip()
    return RankDescription(
        device=device, host=host, cores=environment.usable_cores(), trouble=trouble
    )


def _store_seconds(asked: TrainArguments) -> float:
    try:
        return TrainOptions(timeout=asked.given.get("timeout", STORE_SECONDS)).timeout
    except ValueError:
        return STORE_SECONDS


def _lead(launch: Launch, asked: TrainArguments, output: TrainOutput) -> Joined:
    with _told(launch, launch.order):
        plan, given = _decide(launch, asked, output)
    launch.order(given)
    with ExitStack() as stack:
        with _told(launch, launch.say_prepared):
            embedded = asked.embedded
            ready = stack.enter_context(samples_of(plan))
            introduce(plan, ready, output)
            now = environment.capture(cuda=torch.version.cuda)
            folder = stack.enter_context(open_folder(plan, now))
        launch.say_prepared(_text(ready.folder))
        with ended_well(plan, folder, None), _told(launch, launch.tell):
            launch.prepared(given)
            log = folder.follow()
            log.new()  # what was said before the resumption
            with (
                output.listener(plan.spec, plan.run, ready.steps_per_epoch) as listener,
                _signals(embedded),
                following(log, listener.hear),
            ):
                finished = _train(job_of(plan, ready, folder), launch.rank)
        set_ending(plan, folder, finished)
    return Joined(finished=finished, folder=folder.path, plan=plan)


def _decide(launch: Launch, asked: TrainArguments, output: TrainOutput) -> tuple[TrainPlan, Orders]:
    if asked.given.get("show_config") or output.dry_run:
        raise UsageError("--show-config and --dry-run train nothing; run them without the launcher")
    request = asked.read()
    ranks = launch.descriptions()
    plan = plan_of_world(request, ranks)
    return plan, orders(plan, ranks)


def _follow(launch: Launch, asked: TrainArguments) -> Joined:
    given, embedded = launch.orders(), asked.embedded
    with ExitStack() as stack:
        with _told(launch, launch.say_prepared):
            _require_named_code(asked, given)
        make_importable(given.spec.workload.architecture)
        if given.preparers[launch.rank] == launch.rank:
            with _told(launch, launch.say_prepared):
                mine = prepared_samples(
                    given.spec, given.data_dir, embedded=embedded, download=given.download
                )
                ready = stack.enter_context(mine)
            launch.say_prepared(_text(ready.folder))
        job = TrainingJob(
            spec=given.spec,
            run=given.run,
            folder=Path(given.folder),
            prepared=_path(launch.prepared(given)),
            resume=given.resume,
        )
        try:
            with _signals(embedded):
                finished = _train(job, launch.rank)
        except Interrupted as error:
            raise Agreed(error) from None
        except DpbenchError as error:
            if launch.is_told(error):
                raise Agreed(error) from None
            again = f"{ON_EVERY_NODE}dpbench train --resume {shlex.quote(given.folder)}"
            raise type(error)(f"rank {launch.rank}: {error}; to go on, {again}") from None
    return Joined(finished=finished, folder=job.folder, plan=None)


def _require_named_code(asked: TrainArguments, given: Orders) -> None:
    """Raises UsageError for orders to run code that the command of this rank does not name."""
    workload, named = given.spec.workload, asked.architecture()
    other = None if is_same_code(workload.architecture, named) else workload.architecture
    if is_function(workload.dataset):  # no training has one
        other = workload.dataset
    if other is not None:
        raise UsageError(
            f"the order is for code in {printable(other, LONGEST_SHOWN)}, the command here for "
            f"{named}; expected the same command everywhere"
        )


def _train(job: TrainingJob, rank: int) -> Finished:
    """Trains; if another rank has ended, the error is one line, as that rank reports the cause."""
    try:
        return train_rank(job, rank)
    except RuntimeError as error:
        words = str(error).partition("\n")[0]
        if speaks_of_lost_peer(str(error)):
            raise TrainingFailed(f"another rank has ended: {words}") from None
        if TIMED_OUT in words.lower():  # it has stopped, or the link to its host is cut
            raise TrainingFailed(f"another rank did not answer: {words}") from None
        raise


@contextmanager
def _told(launch: Launch, say: Callable[[DpbenchError], None]) -> Iterator[None]:
    """An error in the block is told to the other ranks as well; one of theirs is raised here."""
    try:
        yield
    except Agreed as agreed:
        if launch.rank == 0:
            raise agreed.error from None
        raise
    except DpbenchError as error:
        say(error)
        launch.linger()
        if launch.rank == 0:
            raise
        raise Agreed(error) from None


def _signals(embedded: bool) -> AbstractContextManager[None]:
    return nullcontext() if embedded else as_exceptions()


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def plan_of_world(request: TrainRequest, ranks: Sequence[RankDescription]) -> TrainPlan:
    """The training with a replica on each rank; says the notes. Raises UsageError, StoreError."""
    for rank, one in enumerate(ranks):
        if one.trouble is not None:
            raise UsageError(f"rank {rank} on {one.host}: {one.trouble}")
    _check_options(request, len(ranks))
    cuda = sum(one.device != "cpu" for one in ranks)
    if 0 < cuda < len(ranks):
        raise UsageError(
            f"{cuda} of {len(ranks)} ranks see a GPU, and the others none; show GPUs to all of "
            'them, or to none with CUDA_VISIBLE_DEVICES=""'
        )
    machine = _Resources(ranks)
    spec = build_spec(
        request, machine, [one.device for one in ranks], _threads(request, ranks, machine)
    )
    _check_backend(spec, ranks)
    return plan_training(request, spec)


def orders(plan: TrainPlan, ranks: Sequence[RankDescription]) -> Orders:
    hosts = [one.host for one in ranks]
    return Orders(
        spec=plan.spec,
        run=plan.run,
        folder=str(plan.place.path.absolute()),
        preparers=tuple(hosts.index(host) for host in hosts),
        resume=plan.place.resume,
        data_dir=_text(plan.request.options.data_dir),
        download=plan.request.options.download,
    )


class _Resources:
    """The host with the fewest cores for each of its ranks."""

    def __init__(self, ranks: Sequence[RankDescription]) -> None:
        counts = Counter(one.host for one in ranks)
        tightest = min(ranks, key=lambda one: one.cores / counts[one.host])
        self.cores = tightest.cores
        self.ranks = counts[tightest.host]
        self.has_cuda = ranks[0].device != "cpu"
        self.gpu_count = self.ranks if self.has_cuda else 0
        self.platform = gpu_platform()
        self.unsupported = unsupported_accelerator()


def _threads(request: TrainRequest, ranks: Sequence[RankDescription], machine: _Resources) -> int:
    if machine.ranks > machine.cores:
        say(f"oversubscribed: {machine.ranks} ranks of one host share {machine.cores} cores")
    return threads_for(device_request(request.options, machine), machine, machine.ranks)


def _check_options(request: TrainRequest, size: int) -> None:
    options = request.options
    if options.gpus is not None:
        raise UsageError(
            f"--gpus {as_typed(options.gpus)}: the launcher has started {size} "
            f"{'process' if size == 1 else 'processes'} and says which device each takes; leave "
            "--gpus out, or run dpbench train without a launcher"
        )
    if size > 1 and IMPLEMENTATIONS[options.implementation].one_process:
        raise UsageError(
            f"--implementation {options.implementation}: one process drives all its replicas, but "
            f"the launcher has started {size}; take ddp, or run dpbench train without a launcher"
        )


def _check_backend(spec: TrainingSpec, ranks: Sequence[RankDescription]) -> None:
    """Checks what one host can tell; ranks that share a GPU are found when they meet."""
    hosts = len({one.host for one in ranks})
    if spec.backend == "shm" and hosts > 1:
        raise UsageError(
            f"--backend shm: it is for the ranks of one host, and these are on {hosts}; take "
            "gloo or nccl"
        )
    known = available_backends()
    reason = known[spec.backend].reason if spec.backend in known else None
    if spec.backend == "nccl" and spec.devices[0] == "cpu":
        reason = reason or f"nccl reduces {gpu_platform()} tensors only"
    if reason:
        raise UsageError(f"--backend {spec.backend}: {reason}")
