"""The place of a process in the launch of each launcher, and the GPU that it takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.errors import UsageError
from dpbench.rendezvous.placement import (
    Placement,
    find_placement,
    local_gpu_index,
)

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
    ],
)
def test_an_error_names_the_variable_its_value_and_the_remedy(
    environ: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=f"{words}.*; start it with torchrun or dpbench launch"):
        Placement.read(environ)


TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29511",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
"""The second process on the second node."""
SLURM = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "MASTER_ADDR": "host0",
}
PLACES: list[tuple[dict[str, str], dict[str, Any]]] = [
    (TORCHRUN, {"node": 1, "node_count": 2, "local_rank": 1, "port": 29511, "has_store": True}),
    (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host0"},
        {"node": 1, "node_count": 2, "local_rank": 0, "local_size": 1, "has_store": False},
    ),
    (SLURM, {"node": 1, "node_count": 2, "address": "", "local_size": 1}),
    (SLURM | {"MASTER_ADDR": "other", "MASTER_PORT": "4000"}, {"address": "other", "port": 4000}),
    (OPEN_MPI, {"node": 1, "node_count": 2, "local_rank": 1, "local_size": 4}),
    ({"PMI_RANK": "1", "PMI_SIZE": "2"}, {"node": 1, "node_count": 2, "address": ""}),
]


@pytest.mark.parametrize(("environ", "expected"), PLACES)
def test_every_launcher_says_which_node_this_is(
    environ: dict[str, str], expected: dict[str, Any]
) -> None:
    found = find_placement(environ)
    assert found is not None
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NODEID": "0"},  # a batch script
    ],
)
def test_a_process_alone_has_no_place(environ: dict[str, str]) -> None:
    assert find_placement(environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (TORCHRUN | {"GROUP_RANK": "first"}, "got GROUP_RANK='first', expected an integer"),
        (TORCHRUN | {"RANK": "4"}, "got RANK='4', expected an integer from 0 to 3"),
        (OPEN_MPI | {"MASTER_PORT": "70000"}, "got MASTER_PORT='70000'"),
    ],
)
def test_a_variable_that_cannot_be_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_placement(environ)


def test_the_variables_of_torchrun_are_made() -> None:
    placed = find_placement(OPEN_MPI)
    assert placed is not None
    assert find_placement(placed.variables) == placed
