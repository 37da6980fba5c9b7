"""What is asked of CUDA, and in which order, on a double of torch.cuda."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from dpbench import parallel
from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel import groups
from dpbench.parallel.dp.parallel_apply import StepMeter, sum_over_replicas
from dpbench.parallel.sharded import shares
from dpbench.parallel.tree import move
from tests.parallel.ddp.one_process import (
    Branches,
    assert_same,
    batches,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.worlds import World
from tests.recording_cuda import GPU, GpuTensor, HostTensor, RecordingCuda, put_into_parallel

world = World(backend="gloo")
CPU, OTHER_GPU = torch.device("cpu"), torch.device("cuda:0")
CURRENT, SIDE = f"stream of {GPU}", f"side stream of {GPU}"
TO_HOST = [
    *(f"{SIDE} waits for {CURRENT}", f"begin {SIDE}", "copy to the host"),
    *(f"{SIDE} uses the tensor", f"record on {SIDE}", f"end {SIDE}", "wait for the event"),
]
BACK = [
    *(f"begin {SIDE}", "copy to the GPU", f"{SIDE} uses the tensor", f"record on {SIDE}"),
    *(f"end {SIDE}", f"{CURRENT} waits for the event"),
]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> RecordingCuda:
    double = RecordingCuda()
    put_into_parallel(double, monkeypatch)
    return double


def test_every_call_of_cuda_is_in_one_module() -> None:
    folder = Path(parallel.__file__).parent
    calling = {p.name for p in folder.rglob("*.py") if "torch.cuda" in p.read_text()}
    assert calling == {"devices.py"}


def test_inputs_are_copied_beside_computation_which_then_waits_for_them(
    cuda: RecordingCuda,
) -> None:
    x = torch.ones(3)
    [moved, name] = move([x.as_subclass(HostTensor), "name"], GPU)
    assert (moved.device, moved.tolist(), name) == (GPU, [1.0] * 3, "name")
    assert cuda.calls == [
        *(f"begin {SIDE}", f"copy to {GPU}", f"end {SIDE}"),
        *(f"{CURRENT} waits for {SIDE}", f"{CURRENT} uses the tensor"),
    ]


def test_a_phase_that_is_measured_waits_for_every_gpu(cuda: RecordingCuda) -> None:
    meter = StepMeter([OTHER_GPU, GPU])
    with meter.time("forward"):
        pass
    assert cuda.calls == []
    meter.waits = True
    with meter.time("backward"):
        pass
    assert cuda.calls == ["synchronize cuda:0", "synchronize cuda:1"]


def test_gradients_of_gpus_are_summed_in_pieces_except_those_that_a_replica_lacks(
    cuda: RecordingCuda,
) -> None:
    one = torch.ones(2)
    table = torch.eye(2).to_sparse()
    replicas = [[one, None, one, table, None], [2 * one, 3 * one, 4 * one, table, None]]
    found = [None if t is None else t.to_dense().tolist() for t in sum_over_replicas(replicas, CPU)]
    assert cuda.calls == []
    for gradients_ in replicas:
        gradients_[0], gradients_[2] = (
            t.as_subclass(GpuTensor) for t in (gradients_[0], gradients_[2]) if t is not None
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "to", lambda self, device: self)
        on_gpu = sum_over_replicas(replicas, OTHER_GPU)
    assert [None if t is None else t.to_dense().tolist() for t in on_gpu] == found
    assert cuda.calls == ["sum 2 tensors of 2 GPUs to 0"]


@world.body
def shm_copies_tensors_of_gpus_through_the_host_in_the_order_of_their_streams(rank: int) -> None:
    group = dist.new_group(backend="shm")
    with pytest.MonkeyPatch.context() as patch:
        for numel in (3, 100_000):
            cuda = RecordingCuda()
            put_into_parallel(cuda, patch)
            tensor = torch.ones(numel).as_subclass(GpuTensor)
            group.allreduce([tensor]).wait()
            assert cuda.calls == TO_HOST + BACK
            assert (tensor.as_subclass(Tensor) == 2).all()


@world.body
def a_group_that_can_average_does_so_unless_a_hook_or_join_divides(rank: int) -> None:
    """As nccl can, and as shm does here."""
    shm = dist.new_group(backend="shm")
    dist.barrier(shm)
    used = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "get_backend_config", lambda group: "cpu:nccl")
        ddp = Ddp(perceptron(), process_group=shm)
        reduce = type(shm).allreduce
        patch.setattr(
            type(shm),
            "allreduce",
            lambda self, tensors, opts: (
                used.append(int(getattr(opts.reduceOp, "op", opts.reduceOp))),
                reduce(self, tensors, opts),
            )[1],
        )
        step(ddp, 0, rank)
    assert used == [int(dist.ReduceOp.AVG.value)]
    assert_same(gradients(ddp), mean_gradients(perceptron, lambda m, r: step(m, 0, r)))


@world.body
def use_is_only_read_where_a_parameter_is_not_used_here(rank: int) -> None:
    """To read it on a GPU would wait for all that was computed."""
    ddp = Ddp(Branches(), find_unused_parameters=True)
    read: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        nonzero = Tensor.nonzero
        patch.setattr(Tensor, "nonzero", lambda self: (read.append("flags"), nonzero(self))[1])
        ddp(batches(0)[rank]).sum().backward()
        assert read == []
        ddp(batches(0)[rank], "ab" if rank else "abc").sum().backward()
        assert read == ["flags"] * rank


class SeenAdamW(optim.AdamW):
    """Notes the kernel that it is asked for, and does not step."""

    def step(self, closure: Any = None) -> Any:
        (group,) = self.param_groups
        (state,) = self.state.values()
        self.seen = (group["fused"], state["step"].device, state["step"].dtype)


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        (GpuTensor, (True, GPU, torch.float32)),
        (Tensor, (False, CPU, torch.bfloat16)),
    ],
)
def test_sharded_steps_in_bfloat16_are_fused_on_a_gpu_only(
    kind: type[Tensor],
    seen: tuple[object, ...],
    cuda: RecordingCuda,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fused kernel reads the number of the step on the GPU, where a loaded state has it not."""

    def zeros(group: object, numel: int, dtype: torch.dtype, device: object) -> Tensor:
        return torch.zeros(numel, dtype=dtype).as_subclass(kind)

    monkeypatch.setattr(shares, "zeros", zeros)
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16).as_subclass(kind))
    weight.grad = torch.full_like(weight, 2.0)
    exchange: Any = SimpleNamespace(rank=0, size=1, group=None, gather=lambda values: values)
    optimizers: list[SeenAdamW] = []

    def make(groups: Any) -> SeenAdamW:
        optimizers.append(SeenAdamW(groups))
        return optimizers[0]

    bucket: Any = SimpleNamespace(
        parameters=[weight], indices=[0], views=[weight], flat=weight.detach()
    )
    share = shares.BucketShare(bucket, [{weight}], make, exchange)
    loaded = torch.tensor(5.0, dtype=torch.bfloat16)
    on_host = HostTensor if kind is GpuTensor else Tensor
    share.state_of(share.parts[0])["step"] = loaded.as_subclass(on_host)
    share.step(SeenAdamW([weight]).param_groups)
    assert optimizers[0].seen == seen


def test_messages_travel_on_the_gpu_to_which_the_group_is_bound(
    cuda: RecordingCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Group:
        bound_device_id: torch.device | None = OTHER_GPU

    group, of_module = Group(), torch.device("cuda:2")
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
    assert groups.carrier(group, of_module) == OTHER_GPU  # type: ignore[arg-type]
    group.bound_device_id = None
    assert groups.carrier(group, of_module) == of_module  # type: ignore[arg-type]
    assert groups.carrier(group, CPU) == GPU  # type: ignore[arg-type]
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo,cuda:nccl")
    assert groups.carrier(group, of_module) == CPU  # type: ignore[arg-type]


test_on_ranks = world.test()
