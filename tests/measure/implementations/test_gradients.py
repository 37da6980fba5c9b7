"""Every implementation that ranks share, on models that have what wrappers trip over."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dpbench.measure.verification import verify
from dpbench.records.trial import Verification
from dpbench.specs.traits import BUILT_IN
from tests.measure.implementations.architectures import (
    CastsLoss,
    DiffersByRank,
    Embedded,
    Frozen,
    Mappings,
    Rows,
    Sparse,
    Tied,
    Weighted,
    WithBuffers,
)
from tests.measure.implementations.verifying import (
    as_torchrun,
    ranks_of,
    samples,
    trained,
    uneven,
    verified,
)
from tests.parallel.ranks import run_ranks

DENSE = (Rows, Weighted, WithBuffers, Frozen, Tied, Embedded, Mappings, DiffersByRank)
OURS_AND_TORCHS = tuple(
    name
    for name, traits in BUILT_IN.items()
    if traits.communicates and not traits.one_process and traits.requires is None
)
REFUSED_SPARSE = {
    "ddp-sharded": "ShardedOptimizer reduces them in flat tensors",
    "fsdp2": "Could not run 'fsdp::chunk_cat'",
    "replicate": "Could not run 'fsdp::chunk_cat'",
}
"""Who cannot average sparse gradients, and in which words a trial fails."""
REFUSED_ON_SHM = dict.fromkeys(
    ("torch-ddp", "torch-ddp-static"), "takes dense CPU and CUDA tensors, got torch.sparse_coo"
)

Answers = dict[tuple[str, str], Verification | str]


def all_answers(
    implementations: tuple[str, ...], backend: str, rank: int
) -> tuple[Answers, dict[str, tuple[list[str], int | None]]]:
    as_torchrun(rank)
    ranks = ranks_of(backend)
    answers: Answers = {
        (name, architecture.__name__): verified(name, backend, architecture(), rank, ranks)
        for architecture in (*DENSE, Sparse)  # what can fail comes last
        for name in implementations
    }
    return answers, {
        name: trained(uneven(name, backend), WithBuffers(), rank, 3) for name in implementations
    }


def check(implementations: tuple[str, ...], backend: str, store: Path) -> None:
    results = run_ranks(partial(all_answers, implementations, backend), store, backend=backend)
    refused = REFUSED_SPARSE | (REFUSED_ON_SHM if backend == "shm" else {})
    for answers, _ in results:
        for (name, architecture), answer in answers.items():
            words = refused.get(name) if architecture == "Sparse" else None
            if words is not None:
                assert words in str(answer), (name, architecture)
                continue
            assert isinstance(answer, Verification), (name, architecture, answer)
            assert answer.passed, (name, architecture)
            assert answer == results[0][0][name, architecture], "ranks tell the worst of all"
            assert answer.dtype == "float64", name
            assert answer.max_relative_error < 1e-12, (name, architecture)
            assert answer.is_sample_mean is (architecture != "Weighted"), (name, architecture)
    assert results[0][1] == results[1][1]
    for name, ((before, wrapped, after), sent) in results[0][1].items():
        assert before == wrapped != after, f"{name}: checksums are of whole parameters"
        if name in ("ddp", "ddp-sharded"):
            assert sent == 3 * 4 * 47, "47 parameters in three steps"


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_buffers_frozen_tied_and_sparse_parameters(backend: str, tmp_path: Path) -> None:
    check(OURS_AND_TORCHS, backend, tmp_path / "store")


def casting(rank: int) -> Verification:
    spec, architecture = uneven("ddp", "gloo", group_size=3, accumulate=3), CastsLoss()
    return verify(spec, architecture, samples(architecture), rank, ranks_of("gloo"))


def test_a_loss_in_float32_is_averaged_as_three_ranks_average_it(tmp_path: Path) -> None:
    """A third is rounded in float32, in a factor of the loss and not in one of its gradients."""
    for found in run_ranks(casting, tmp_path / "store", world_size=3):
        assert (found.passed, found.is_sample_mean) == (True, True)
        assert found.max_relative_error < 1e-12


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, t in BUILT_IN.items() if t.requires])
def test_what_others_package_passes_the_same_verification(name: str, tmp_path: Path) -> None:
    check((name,), "gloo", tmp_path / "store")
