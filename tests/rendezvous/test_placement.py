"""The place of a process in its launch, from torchrun's variables, and the GPU that it takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.rendezvous.placement import Placement, local_gpu_index

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
    assert local_gpu_index(rank, world_size, environ) == index


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
        local_gpu_index(1, 4, environ)


@given(hosts=st.integers(1, 5), here=st.integers(1, 8))
def test_ranks_of_a_host_share_no_gpu(hosts: int, here: int) -> None:
    size = hosts * here
    for environ in ({}, {"LOCAL_WORLD_SIZE": str(here)}):
        first_host = [local_gpu_index(rank, size, environ) for rank in range(here)]
        assert first_host == list(range(here))


def test_the_address_and_the_port_have_torchs_defaults() -> None:
    there = Placement.read(BOTH)
    assert (there.rank, there.address, there.port) == (1, "127.0.0.1", 29500)
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
