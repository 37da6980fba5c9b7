"""Which backends and which GPU a rank can use, with the reason where not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import dpbench
from dpbench.rendezvous.available_backends import local_device, missing_reason
from dpbench.rendezvous.placement import Placement
from dpbench.specs.traits import BACKENDS


def test_each_backend_is_usable_or_says_why_not() -> None:
    found = dpbench.available_backends()
    assert [*found] == ["gloo", "nccl", "shm", "nccl-legacy", "nccl2"]
    assert found["gloo"].usable
    if not torch.cuda.is_available():
        assert not any(found[name].usable for name in ("nccl", "nccl-legacy", "nccl2"))


@pytest.mark.parametrize(
    ("function", "answer", "backend", "gpus", "reason"),
    [
        ("is_available", False, "shm", 2, "torch was built without torch.distributed"),
        ("is_gloo_available", False, "gloo", 2, "torch was built without gloo"),
        ("is_nccl_available", False, "nccl", 2, "torch was built without nccl"),
        ("is_nccl_available", True, "nccl", 1, None),
        (
            *("is_nccl_available", True, "nccl", 0),
            "nccl needs a CUDA device; this machine has none",
        ),
        (
            *("is_nccl_available", True, "nccl3", 2),
            f"torch {torch.__version__} has no backend nccl3",
        ),
    ],
)
def test_what_torch_was_built_without_and_nccl_without_a_gpu_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    answer: bool,
    backend: str,
    gpus: int,
    reason: str | None,
) -> None:
    monkeypatch.setattr(dist, function, lambda: answer)
    monkeypatch.setitem(BACKENDS, "nccl3", BACKENDS["nccl"])
    assert missing_reason(backend, gpus) == reason


BOTH = {"RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("rank", "world_size", "environ", "index"),
    [
        (5, 8, {"LOCAL_RANK": "2"}, 2),
        (3, 4, {"LOCAL_WORLD_SIZE": "2"}, 1),
        (1, 2, {}, 1),
        (5, 8, {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}, 2),
        (1, 2, {"CUDA_VISIBLE_DEVICES": "1"}, 0),  # a GPU of its own for each process
        (1, 2, {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "GPU-8f2a"}, 0),
        (1, 2, {"CUDA_VISIBLE_DEVICES": "2,3"}, 1),
    ],
)
def test_the_index_is_that_of_the_process_on_its_host(
    rank: int, world_size: int, environ: dict[str, str], index: int
) -> None:
    assert local_device(rank, world_size, environ) == index


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"LOCAL_RANK": "x"}, "got LOCAL_RANK='x', expected an integer from 0 to 3"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK='2', expected .* from 0 to 1"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE='0', expected an integer from 1 to 4"),
    ],
)
def test_a_bad_integer_is_an_error(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        local_device(1, 4, environ)


@given(hosts=st.integers(1, 5), here=st.integers(1, 8))
def test_ranks_of_a_host_share_no_gpu(hosts: int, here: int) -> None:
    size = hosts * here
    for told in ({}, {"LOCAL_WORLD_SIZE": str(here)}):
        first_host = [local_device(rank, size, told) for rank in range(here)]
        assert first_host == list(range(here))


def test_the_address_and_the_port_have_torchs_defaults() -> None:
    there = Placement.read(BOTH)
    assert there == Placement(rank=1, world_size=2, address="127.0.0.1", port=29500)
    told = Placement.read({**BOTH, "MASTER_ADDR": "host0", "MASTER_PORT": "1"})
    assert (told.address, told.port) == ("host0", 1)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set, expected an integer of 1 or more"),
        ({"WORLD_SIZE": "2"}, "RANK is not set, expected an integer from 0 to 1"),
        ({**BOTH, "RANK": "2"}, "got RANK='2', expected an integer from 0 to 1"),
        ({**BOTH, "RANK": "٣"}, "got RANK='٣'"),
        ({**BOTH, "WORLD_SIZE": "0"}, "got WORLD_SIZE='0'"),
        ({**BOTH, "MASTER_PORT": "99999"}, "MASTER_PORT='99999', expected .* from 1 to 65535"),
        ({**BOTH, "MASTER_ADDR": ""}, "got MASTER_ADDR='', expected the host of rank 0"),
    ],
)
def test_an_error_names_the_variable_its_value_and_the_remedy(
    environ: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=f"{words}.*; start it with torchrun or dpbench launch"):
        Placement.read(environ)
