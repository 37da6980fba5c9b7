"""A process finds its place in a job of each launcher."""

from __future__ import annotations

from typing import Any

import pytest

from dpbench.errors import UsageError
from dpbench.rendezvous.placement import find_placement, remove_placement

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
    (
        TORCHRUN,
        {"node": 1, "node_count": 2, "local_rank": 1, "port": 29511, "has_store": True},
    ),
    (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host0"},
        {"node": 1, "node_count": 2, "local_rank": 0, "local_size": 1, "has_store": False},
    ),
    (SLURM, {"node": 1, "node_count": 2, "address": "", "local_size": 1}),
    (
        SLURM | {"MASTER_ADDR": "other", "MASTER_PORT": "4000"},
        {"address": "other", "port": 4000},
    ),
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


def test_the_variables_of_torchrun_are_forgotten_and_made() -> None:
    environ = dict(TORCHRUN, HOME="/root")
    remove_placement(environ)
    assert [name for name in environ if "RANK" in name or "SIZE" in name] == []
    placed = find_placement(OPEN_MPI)
    assert placed is not None
    assert find_placement(placed.variables) == placed
