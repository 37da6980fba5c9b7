"""A training in ranks that a launcher started: torchrun, dpbench launch, or one shell a rank.

Rank 0 reads the options and decides, and the others do what it orders: nothing is decided twice,
and only rank 0 speaks and writes. They talk through the launch's store, not in a collective: there
is no process group yet, and preparing data may take long.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from dpbench import errors
from dpbench.architecture import make_importable
from dpbench.codec import decode, encode
from dpbench.data.registry import is_function
from dpbench.data.user_code import is_same_code
from dpbench.errors import DpbenchError, Interrupted, StoreError, TrainingFailed, UsageError
from dpbench.launch.exchange import VARIABLE, Exchange, given_token
from dpbench.launch.rank import speaks_of_lost_peer
from dpbench.messages import printable, said_to, say
from dpbench.options.bridge import as_typed
from dpbench.options.train import TrainOptions
from dpbench.records import environment
from dpbench.rendezvous.available_backends import (
    available_backends,
    gpu_platform,
    local_device,
)
from dpbench.rendezvous.launch_variables import LaunchVariables
from dpbench.rendezvous.store import open_store
from dpbench.report.progress.training import TrainOutput
from dpbench.run.interrupts import as_exceptions
from dpbench.run.this_machine import threads_for
from dpbench.run.training.arguments import TrainArguments, TrainRequest
from dpbench.run.training.preparation import (
    Samples,
    TrainPlan,
    build_spec,
    device_request,
    plan_training,
    prepared_samples,
)
from dpbench.run.training.running import (
    ON_EVERY_NODE,
    ended_well,
    following,
    introduce,
    open_folder,
    set_ending,
)
from dpbench.specs.training import TrainingRun, TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.training.events import Finished
from dpbench.training.job import TrainingJob
from dpbench.training.progress import NotFinite
from dpbench.training.rank import train_rank
from dpbench.training.run_folder import RunFolder
from dpbench.training.session import OutOfSync

T = TypeVar("T")

TIMED_OUT = "timed out waiting"  # gloo's words
LONGEST_SHOWN = 2000
"""Most characters shown of a text from another host."""
STORE_SECONDS = 120.0
"""Time to look for the launch's store where --timeout is wrong, which rank 0 reports."""
PAUSE_SECONDS = 0.05
LINGER_SECONDS = 1.0
"""Seconds that rank 0, which may hold the store, stays for the others to read an error."""
KINDS = {
    kind.__name__: kind
    for kind in (UsageError, StoreError, errors.DataError, TrainingFailed, errors.LaunchError)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """The end of a training, the same on every rank."""

    finished: Finished
    folder: Path
    plan: TrainPlan | None
    """On rank 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDescription:
    """The report of a rank on itself."""

    device: str
    host: str
    cores: int
    """Cores of its host."""
    trouble: str | None = None
    """Why it cannot train."""


class Agreed(Exception):
    """An error that rank 0 reports for all."""

    def __init__(self, error: DpbenchError) -> None:
        super().__init__(str(error))
        self.error = error


class Launch:
    """The ranks of one launch, which agree on what rank 0 decides."""

    def __init__(self, variables: LaunchVariables, environ: Mapping[str, str], seconds: float):
        """Waits for all ranks.

        Raises RuntimeError if the store is not there within `seconds`, LaunchError naming the ranks
        that do not come, UsageError for an invalid token.
        """
        self.rank, self._size = variables.rank, variables.world_size
        token = given_token(None, environ) or ""
        of_all = PrefixStore(
            "dpbench train", open_store(variables, environ, timedelta(seconds=seconds))
        )
        # A program may train more than once in one launch, on every rank alike.
        number = of_all.add(f"trainings of {self.rank}", 1)
        store = PrefixStore(f"training {number}", of_all)
        self._exchange = Exchange(store, token, "rank", member=self.rank, members=self._size)
        described = self._exchange.meet(encode(describe_rank(variables)), seconds)
        self.ranks = [decoded(RankDescription, one) for one in described]
        """The descriptions of all ranks."""

    def agree(self, key: str, work: Callable[[], Any]) -> list[Any]:
        """What `work` returns on each rank, once all have done it; must be JSON.

        A DpbenchError of any rank is raised on all: on rank 0 as it is, on the others as Agreed.
        """
        own: DpbenchError | None = None
        try:
            content = {"value": work()}
        except DpbenchError as error:
            own = error
            kind = next((n for n, one in KINDS.items() if isinstance(error, one)), "TrainingFailed")
            content = {"error": str(error), "kind": kind}
        self._exchange.put(f"{key} of {self.rank}", content)
        if self.rank == 0:
            contents = [self._wait(f"{key} of {rank}") for rank in range(self._size)]
            failed = next((one for one in contents if "error" in one), None)
            self._exchange.put(key, failed or {"values": [one["value"] for one in contents]})
        found = self._wait(key)
        if "error" not in found:
            return list(found["values"])
        shown = printable(str(found["error"]), LONGEST_SHOWN)
        raised = KINDS.get(str(found.get("kind")), TrainingFailed)(shown)
        if self.rank == 0:
            sleep(LINGER_SECONDS)
            raise own or raised
        raise Agreed(raised)

    def _wait(self, key: str) -> Any:
        while (found := self._exchange.get(key)) is None:
            if key in self._exchange.other_token:
                raise TrainingFailed(
                    f"the launch's store holds under {key!r} what no rank of this launch has said; "
                    f"expected the same {VARIABLE} on all nodes, and a network that only they can "
                    "reach"
                )
            sleep(PAUSE_SECONDS)
        return found


def decoded(kind: type[T], value: Any) -> T:
    try:
        return decode(kind, value)
    except StoreError as error:
        raise TrainingFailed(f"a rank has another version of dpbench ({error})") from None


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
        seconds = TrainOptions(timeout=asked.given.get("timeout", STORE_SECONDS)).timeout
    except ValueError:
        seconds = STORE_SECONDS
    try:
        launch = Launch(variables, os.environ, seconds)
    except RuntimeError as error:
        raise TrainingFailed(str(error)) from None
    with nullcontext() if launch.rank == 0 else said_to(lambda message: None):
        return take_part(launch, asked, output)


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


def take_part(launch: Launch, asked: TrainArguments, output: TrainOutput) -> Joined:
    """Trains as one rank: rank 0 decides, and the first rank of each host prepares its samples."""
    leads, plans, prepared = launch.rank == 0, list[TrainPlan](), list[Samples]()
    hosts = [one.host for one in launch.ranks]
    preparer = hosts.index(hosts[launch.rank])

    def decide() -> Any:
        if asked.given.get("show_config") or output.dry_run:
            raise UsageError(
                "--show-config and --dry-run train nothing; run them without the launcher"
            )
        plan = plan_of_world(asked.read(), launch.ranks)
        plans.append(plan)
        data_dir = plan.request.options.data_dir
        return {
            "spec": encode(plan.spec),
            "run": encode(plan.run),
            "folder": str(plan.place.path.absolute()),
            "resume": plan.place.resume,
            "data_dir": None if data_dir is None else str(data_dir),
            "download": plan.request.options.download,
        }

    orders = launch.agree("orders", decide if leads else lambda: None)[0]
    spec, run = decoded(TrainingSpec, orders["spec"]), decoded(TrainingRun, orders["run"])
    with ExitStack() as stack:

        def prepare() -> str | None:
            # The order must be for code that the command of this rank names.
            workload, named = spec.workload, asked.architecture()
            other = None if is_same_code(workload.architecture, named) else workload.architecture
            if is_function(workload.dataset):  # no training has one
                other = workload.dataset
            if other is not None:
                raise UsageError(
                    f"the order is for code in {printable(other, LONGEST_SHOWN)}, the command here "
                    f"for {named}; expected the same command everywhere"
                )
            make_importable(workload.architecture)
            if preparer != launch.rank:
                return None
            data_dir, download = orders["data_dir"], orders["download"]
            samples = prepared_samples(spec, data_dir, embedded=asked.embedded, download=download)
            prepared.append(stack.enter_context(samples))
            if leads:
                introduce(plans[0], prepared[0], output)
            return None if prepared[0].folder is None else str(prepared[0].folder)

        samples = launch.agree("samples", prepare)[preparer]
        job = TrainingJob(
            spec=spec,
            run=run,
            folder=Path(orders["folder"]),
            prepared=None if samples is None else Path(samples),
            resume=orders["resume"],
        )
        signals = nullcontext() if asked.embedded else as_exceptions()
        if leads:
            finished = _lead(launch, plans[0], prepared[0], job, output, signals)
            return Joined(finished=finished, folder=plans[0].place.path, plan=plans[0])
        launch.agree("folder", lambda: None)
        try:
            with signals:
                finished = _train(job, launch.rank)
        except (Interrupted, NotFinite, OutOfSync) as error:  # all ranks raise these
            raise Agreed(error) from None
        except DpbenchError as error:
            again = f"{ON_EVERY_NODE}dpbench train --resume {shlex.quote(orders['folder'])}"
            raise type(error)(f"rank {launch.rank}: {error}; to go on, {again}") from None
    return Joined(finished=finished, folder=job.folder, plan=None)


def _lead(
    launch: Launch,
    plan: TrainPlan,
    ready: Samples,
    job: TrainingJob,
    output: TrainOutput,
    signals: AbstractContextManager[None],
) -> Finished:
    """Trains as rank 0, which writes the run folder and shows what happens."""
    with ExitStack() as stack:
        opened: list[RunFolder] = []

        def open_it() -> None:
            now = environment.capture(cuda=torch.version.cuda)
            opened.append(stack.enter_context(open_folder(plan, now)))

        launch.agree("folder", open_it)
        (folder,) = opened
        with ended_well(plan, folder, None):
            log = folder.follow()
            log.new()  # what was said before the resumption
            listener = output.listener(plan.spec, plan.run, ready.steps_per_epoch)
            with listener, signals, following(log, listener.hear):
                finished = _train(job, launch.rank)
        set_ending(plan, folder, finished)
    return finished


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


def plan_of_world(request: TrainRequest, ranks: Sequence[RankDescription]) -> TrainPlan:
    """The training with a replica on each rank; says the notes. Raises UsageError, StoreError."""
    options, size = request.options, len(ranks)
    for rank, one in enumerate(ranks):
        if one.trouble is not None:
            raise UsageError(f"rank {rank} on {one.host}: {one.trouble}")
    leave_out = ", or run dpbench train without a launcher"
    if options.gpus is not None:
        raise UsageError(
            f"--gpus {as_typed(options.gpus)}: the launcher has started {size} "
            f"{'process' if size == 1 else 'processes'} and says which device each takes; leave "
            f"--gpus out{leave_out}"
        )
    if size > 1 and IMPLEMENTATIONS[options.implementation].one_process:
        raise UsageError(
            f"--implementation {options.implementation}: one process drives all its replicas, but "
            f"the launcher has started {size}; take ddp{leave_out}"
        )
    machine = _Resources(ranks)
    if machine.ranks > machine.cores:
        say(f"oversubscribed: {machine.ranks} ranks of one host share {machine.cores} cores")
    threads = threads_for(device_request(options, machine), machine, machine.ranks)
    spec = build_spec(request, machine, [one.device for one in ranks], threads)
    hosts = len({one.host for one in ranks})
    known = available_backends()
    reason = known[spec.backend].reason if spec.backend in known else None
    if spec.backend == "shm" and hosts > 1:
        reason = f"it is for the ranks of one host, and these are on {hosts}; take gloo or nccl"
    if spec.backend == "nccl" and not machine.has_cuda:
        reason = reason or f"nccl reduces {gpu_platform()} tensors only"
    if reason:
        raise UsageError(f"--backend {spec.backend}: {reason}")
    return plan_training(request, spec)
