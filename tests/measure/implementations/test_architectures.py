"""Architectures that ship pass the proof of gradients, ours and torch's, on two ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from dpbench import architecture
from dpbench.data import datasets
from dpbench.measure.verification import verify
from tests.builders import WORKLOAD
from tests.measure.implementations.proofs import ranks_of, uneven
from tests.parallel.ranks import run_ranks

SMALL = {
    "bert": "bert:layers=2,width=32,heads=2,context=16,vocabulary=64",
    "dlrm": "dlrm:tables=3,rows=50,width=4",
    "gpt": "gpt:layers=2,width=32,heads=2,context=16,vocabulary=64",
    "linear": "linear",
    "mlp": "mlp:width=32,layers=2",
    "mnist_cnn": "mnist_cnn:width=4",
    "tabular": "tabular:layers=1,width=16,heads=2",
    "vit": "vit:image=32,patch=16,width=16,layers=1,heads=2,classes=10",
}
TOO_SLOW = {"resnet", "vgg16"}
"""Their convolutions take a minute in float64; every sweep of them makes the same proof."""
IMPLEMENTATIONS = ("ddp", "torch-ddp")


def errors(rank: int) -> dict[tuple[str, str], float]:
    torch.set_num_threads(1)
    ranks = ranks_of("gloo")
    found = {}
    for name, text in SMALL.items():
        loaded = architecture.load_architecture(text)
        samples = datasets.load_dataset("synthetic", None, loaded, seed=0, samples=32)
        for implementation in IMPLEMENTATIONS:
            trial = uneven(implementation, "gloo", workload=WORKLOAD)
            proof = verify(trial, loaded, samples, rank, ranks)
            found[name, implementation] = proof.max_relative_error
    return found


def test_every_architecture_has_the_gradients_of_one_process(tmp_path: Path) -> None:
    assert {*SMALL} | TOO_SLOW == {*architecture.names()}
    for found in run_ranks(errors, tmp_path / "store", backend="gloo"):
        assert all(error < 1e-12 for error in found.values()), found
