"""How devices are named, and what is asked of CUDA in which order, on a double of torch.cuda."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from dpbench import parallel
from dpbench.parallel import groups
from dpbench.parallel.devices import parse_device, parse_devices
from dpbench.parallel.dp.parallel_apply import sum_over_replicas
from dpbench.parallel.sharded import shards
from dpbench.parallel.tree import move
from tests.recording_cuda import GPU, GpuTensor, HostTensor, RecordingCuda, put_into_parallel

CPU, OTHER_GPU = torch.device("cpu"), torch.device("cuda:0")
CURRENT, SIDE = f"stream of {GPU}", f"side stream of {GPU}"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
def test_cuda_devices_are_named_by_index_string_or_object(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (torch.device("cuda:0"), torch.device("cuda:1"))
    assert parse_devices(None) == expected
    assert parse_devices([0, "cuda:1"]) == expected
    assert parse_devices([torch.device("cuda"), 1]) == expected
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert parse_device("cuda") == parse_device(torch.device("cuda")) == torch.device("cuda:1")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("ids", "kind", "value"),
    [
        ([], ValueError, r"\[\]"),
        ([-1], ValueError, "-1"),
        (["cuda:2"], ValueError, "cuda:2"),
        ([0, "cuda:0"], ValueError, "cuda:0"),
        (["cuda:0", "cpu"], ValueError, r"\['cuda:0', 'cpu'\], expected CUDA devices, each"),
        (["gpu"], ValueError, "gpu"),
        (["mps"], ValueError, "mps"),
        ([True], TypeError, "True"),
        ("cpu", TypeError, "cpu"),
    ],
)
def test_bad_devices_are_refused_with_their_value(
    ids: list[object], kind: type[Exception], value: str
) -> None:
    with pytest.raises(kind, match=value):
        parse_devices(ids)  # type: ignore[arg-type]


def test_without_cuda_the_default_names_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ValueError, match=r'CUDA_VISIBLE_DEVICES=7\).*\["cpu"\] \* n'):
        parse_devices(None)


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

    monkeypatch.setattr(shards, "allocate_group_zeros", zeros)
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16).as_subclass(kind))
    weight.grad = torch.full_like(weight, 2.0)
    alone: Any = SimpleNamespace(rank=0, size=1, group=None, all_gather=lambda values: values)
    bucket: Any = SimpleNamespace(
        parameters=lambda: [weight], views_in=lambda flat: [flat], flat=weight.detach()
    )
    found: list[tuple[object, ...]] = []

    def note(optimizer: optim.AdamW) -> None:
        [group], [state] = optimizer.param_groups, optimizer.state.values()
        found.append((group["fused"], state["step"].device, state["step"].dtype))

    monkeypatch.setattr(optim.AdamW, "step", note)
    shard = shards.BucketShard(bucket, [{weight}], optim.AdamW, alone)
    loaded = torch.tensor(5.0, dtype=torch.bfloat16)
    on_host = HostTensor if kind is GpuTensor else Tensor
    shard.state_of(shard.parts[0])["step"] = loaded.as_subclass(on_host)
    shard.step(optim.AdamW([weight]).param_groups)
    assert found == [seen]


def test_messages_travel_on_the_gpu_to_which_the_group_is_bound(
    cuda: RecordingCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    group: Any = SimpleNamespace(bound_device_id=OTHER_GPU)
    of_module = torch.device("cuda:2")
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
    assert groups.message_device(group, of_module) == OTHER_GPU
    group.bound_device_id = None
    assert groups.message_device(group, of_module) == of_module
    assert groups.message_device(group, CPU) == GPU
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo,cuda:nccl")
    assert groups.message_device(group, of_module) == CPU
