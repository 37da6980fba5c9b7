"""Every bad argument raises one error that says what it got and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ranks import run_ranks

MEBIBYTES = "numbers of MiB above 0"

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"bucket_cap_mb": 0}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb": -1.5}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb": float("nan")}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb": float("inf")}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb": "25"}, (TypeError, ValueError), "25.*expected"),
    ({"bucket_cap_mb_list": []}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb_list": [1, 0]}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb_list": 5}, (TypeError, ValueError), "bucket_cap_mb_list=5, expected"),
    ({"bucket_cap_mb": 1, "bucket_cap_mb_list": [1]}, ValueError, "expected one"),
    ({"dim": 1}, ValueError, "got dim=1"),
    ({"device_ids": [0, 1]}, ValueError, r"single element, but got \[0, 1\]; start one process"),
    ({"device_ids": ["cpu"]}, ValueError, r"got device_ids \['cpu'\], output_device None"),
    ({"device_ids": [0]}, ValueError, r"got device_ids \[0\], output_device None"),
    ({"device_ids": 0}, TypeError, "got device_ids=0, expected"),
    ({"device_ids": "cpu"}, TypeError, "got device_ids='cpu', expected"),
    ({"output_device": "cpu"}, ValueError, "output_device 'cpu'"),
    ({"output_device": True}, TypeError, "got True as a device"),
    ({"broadcast_buffers": "no"}, TypeError, "got broadcast_buffers='no', expected"),
    ({"init_sync": 0}, TypeError, "got init_sync=0, expected"),
    ({"find_unused_parameters": "yes"}, TypeError, "got find_unused_parameters='yes', expected"),
    ({"static_graph": 1}, TypeError, "got static_graph=1, expected"),
    ({"forward_sync_buffers": 2}, TypeError, "got forward_sync_buffers=2, expected"),
    ({"gradient_as_bucket_view": 2}, TypeError, "got gradient_as_bucket_view=2, expected"),
    ({"device_mesh": 5}, TypeError, "got device_mesh=5, expected"),
    ({"process_group": 5}, (TypeError, ValueError), "5"),
    ({"check_reduction": True}, ValueError, "got check_reduction=True.*not offer"),
    ({"mixed_precision": "bf16"}, ValueError, "got mixed_precision='bf16'.*autocast"),
    ({"skip_all_reduce_unused_params": True}, ValueError, "every bucket is reduced"),
    ({"delay_all_reduce_named_params": []}, ValueError, "delay_all_reduce_named_params=\\[\\]"),
    ({"param_to_hook_all_reduce": 1}, ValueError, "got param_to_hook_all_reduce=1"),
    ({"first_bucket_cap_mb": 1}, TypeError, "unexpected keyword argument 'first_bucket_cap_mb'"),
]


def bad_arguments_are_refused(rank: int) -> None:
    for arguments, kind, words in BAD:
        with pytest.raises(kind, match=words):
            Ddp(nn.Linear(2, 2), **arguments)


def with_buffer(buffer: Tensor) -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_buffer("extra", buffer)
    return module


def buffers_that_are_not_sent_may_be_of_any_kind(rank: int) -> None:
    for buffer in (
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.zeros(1).expand(3),
    ):
        ddp = Ddp(with_buffer(buffer), broadcast_buffers=False)
        ddp(torch.ones(1, 2)).sum().backward()
        module = with_buffer(buffer)
        Ddp._set_params_and_buffers_to_ignore_for_model(module, ["extra"])
        Ddp(module)(torch.ones(1, 2)).sum().backward()


def bad_modules_are_refused(rank: int) -> None:
    norm = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    with torch.inference_mode():
        in_inference_mode = nn.Linear(2, 2)
    split = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    for module, kind, words in (
        (None, TypeError, "got module=None, expected"),
        (nn.ReLU(), RuntimeError, "doesn't have any parameter that requires a gradient"),
        (nn.Linear(2, 2).requires_grad_(False), RuntimeError, "doesn't have any parameter"),
        (nn.LazyLinear(2), RuntimeError, "uninitialized parameters can't be used"),
        (norm, ValueError, "SyncBatchNorm layers only work with GPU modules"),
        (split, ValueError, "same type of devices"),
        (nn.Linear(2, 2, device="meta"), ValueError, "'meta'"),
        (
            with_buffer(torch.eye(2).to_sparse()),
            RuntimeError,
            "'extra' has layout torch.sparse_coo",
        ),
        (with_buffer(torch.zeros(1).expand(3)), RuntimeError, "'extra' is expanded"),
        (in_inference_mode, RuntimeError, "made in torch.inference_mode"),
    ):
        with pytest.raises(kind, match=words):
            Ddp(module)


def arguments_at_torchs_defaults_are_accepted(rank: int) -> None:
    Ddp(
        nn.Linear(2, 2),
        None,
        None,
        0,
        None,
        True,
        None,
        None,
        False,
        False,
        False,
        False,
        delay_all_reduce_named_params=None,
        param_to_hook_all_reduce=None,
        mixed_precision=None,
        device_mesh=None,
        skip_all_reduce_unused_params=False,
        bucket_cap_mb_list=None,
        batched_grad_copy=False,
        forward_sync_buffers=None,
    )
    assert Ddp(nn.Linear(2, 2), device_ids=[]).device_ids is None


def a_device_mesh_of_one_dimension_is_a_group(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    ddp = Ddp(nn.Linear(1, 1, bias=False), device_mesh=mesh)
    assert ddp.device_mesh is mesh
    ddp(torch.tensor([[rank + 1.0]])).sum().backward()
    assert ddp.module.weight.grad.item() == 1.5
    with pytest.raises(RuntimeError, match="both process_group and device_mesh"):
        Ddp(nn.Linear(1, 1), device_mesh=mesh, process_group=dist.group.WORLD)
    with pytest.raises(RuntimeError, match="Only 1D device mesh"):
        Ddp(nn.Linear(1, 1), device_mesh=init_device_mesh("cpu", (2, 1)))


SCENARIOS = [
    bad_arguments_are_refused,
    bad_modules_are_refused,
    buffers_that_are_not_sent_may_be_of_any_kind,
    arguments_at_torchs_defaults_are_accepted,
    a_device_mesh_of_one_dimension_is_a_group,
]


def test_bad_arguments_are_refused_before_any_communication(tmp_path: Path) -> None:
    run_ranks(SCENARIOS, tmp_path / "store")


def test_without_a_process_group_it_refuses() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        Ddp(nn.Linear(2, 2))
