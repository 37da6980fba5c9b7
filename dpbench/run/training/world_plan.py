"""Plans a training in the world of a launcher: a replica on each rank, as its host has room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.rendezvous.available_backends import (
    available_backends,
    gpu_platform,
    unsupported_accelerator,
)
from dpbench.run.this_machine import threads_for
from dpbench.run.training.arguments import TrainRequest
from dpbench.run.training.orders import Orders, Standing
from dpbench.run.training.preparation import TrainPlan, build_spec, device_request, plan_training
from dpbench.specs.settings import AUTO, as_typed
from dpbench.specs.training import TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS


def plan_of_world(request: TrainRequest, ranks: Sequence[Standing]) -> TrainPlan:
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


def orders(plan: TrainPlan, ranks: Sequence[Standing]) -> Orders:
    hosts = [one.host for one in ranks]
    return Orders(
        spec=plan.spec,
        run=plan.run,
        folder=str(plan.place.path.absolute()),
        preparers=tuple(hosts.index(host) for host in hosts),
        resume=plan.place.resume,
        data_dir=plan.request.options.data_dir,
        download=plan.request.options.download,
    )


class _Resources:
    """The host with the fewest cores for each of its ranks."""

    def __init__(self, ranks: Sequence[Standing]) -> None:
        counts = Counter(one.host for one in ranks)
        tightest = min(ranks, key=lambda one: one.cores / counts[one.host])
        self.cores = tightest.cores
        self.ranks = counts[tightest.host]
        self.has_cuda = ranks[0].device != "cpu"
        self.gpu_count = self.ranks if self.has_cuda else 0
        self.platform = gpu_platform()
        self.unsupported = unsupported_accelerator()


def _threads(request: TrainRequest, ranks: Sequence[Standing], machine: _Resources) -> int:
    if machine.ranks > machine.cores:
        say(f"oversubscribed: {machine.ranks} ranks of one host share {machine.cores} cores")
    return threads_for(device_request(request.options, machine), machine, machine.ranks)


def _check_options(request: TrainRequest, size: int) -> None:
    options = request.options
    if options.gpus is not AUTO:
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


def _check_backend(spec: TrainingSpec, ranks: Sequence[Standing]) -> None:
    """As far as one host can tell; that two ranks have one GPU is found when they meet."""
    hosts = len({one.host for one in ranks})
    if spec.backend == "shm" and hosts > 1:
        raise UsageError(
            f"--backend shm: it is for the ranks of one host, and these are on {hosts}; take "
            "shm+gloo, gloo or nccl"
        )
    known = available_backends()
    reason = known[spec.backend].reason if spec.backend in known else None
    if spec.backend == "nccl" and spec.devices[0] == "cpu":
        reason = reason or f"nccl reduces {gpu_platform()} tensors only"
    if reason:
        raise UsageError(f"--backend {spec.backend}: {reason}")
