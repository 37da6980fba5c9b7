"""150 iris flowers, 4 → 32 → 3: dp_train beside the plain loop, on flowers it has not seen.

Fisher's data (1936), as they come with scikit-learn: sorted by species, so that samples must be
shuffled, and a hold-out must be taken from every species.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbench import units
from dpbench.data.hold_out import every_fifth
from dpbench.errors import DataError
from dpbench.training.demos.plain_loop import (
    as_batches,
    largest_difference,
    one_by_one,
    train_plain,
)
from dpbench.training.demos.section import Check, Checks, Section, Table
from dpbench.training.dp_train import dp_train
from dpbench.training.result import TrainingResult

ITERATIONS, LEARNING_RATE, HIDDEN = 2000, 1e-3, 32
REPLICAS = (1, 2)
SEED = 42
LEAST_ACCURACY = 0.85
TOLERANCE = 1e-9
"""Adam divides by the roots of tiny squares, which magnifies what the order of a sum changes."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Flowers:
    """Measures, float64 (n, 4), and species, int64 (n,)."""

    inputs: Tensor
    targets: Tensor

    def accuracy(self, model: nn.Module) -> float:
        """The share of flowers whose species the model names."""
        with torch.no_grad():
            named = model(self.inputs).argmax(dim=1)
        return float((named == self.targets).double().mean())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trained:
    """A model and what it took."""

    name: str
    model: nn.Module
    last_loss: float
    """Mean over the last pass through the training flowers."""
    seconds: float


def run(iterations: int = ITERATIONS) -> Iterator[Section]:
    """Trains the plain loop and dp_train on the same samples; shows accuracies and checks."""
    train, test = flowers()
    yield (
        f"Iris: {len(train.targets)} flowers to train on, {len(test.targets)} held out, model "
        f"4 → {HIDDEN} → 3, {iterations} iterations of 1 flower per replica, Adam, learning "
        f"rate {LEARNING_RATE:g}. Four trainings, some seconds each:"
    )
    results = {count: _replicated(train, count, iterations) for count in REPLICAS}
    oracles = {count: _alone(train, results[count]) for count in REPLICAS}
    trained: list[Trained] = []
    for count in REPLICAS:
        trained += (oracles[count], _as_trained(count, results[count]))
    yield _table(trained, train, test)
    accurate = (_accurate(one, test) for one in trained)
    equal = (_equal(count, results[count].model, oracles[count].model) for count in REPLICAS)
    yield Checks(checks=(*accurate, *equal))


def flowers() -> tuple[Flowers, Flowers]:
    """120 to train on and 30 held out, ten of each species, scaled by the former's deviations."""
    try:
        from sklearn.datasets import load_iris
    except ImportError as error:
        raise DataError(
            f"the iris flowers come with scikit-learn: {error}; pip install scikit-learn"
        ) from error
    measures, species = load_iris(return_X_y=True)
    held_out = every_fifth(species)
    known = measures[~held_out]
    scaled = (measures - known.mean(axis=0)) / known.std(axis=0)
    return _part(scaled, species, ~held_out), _part(scaled, species, held_out)


def _part(measures: np.ndarray, species: np.ndarray, chosen: np.ndarray) -> Flowers:
    targets = species[chosen].astype(np.int64)
    return Flowers(inputs=torch.from_numpy(measures[chosen]), targets=torch.from_numpy(targets))


def make_model() -> nn.Module:
    """4 → 32 → 3 in float64, the same weights in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(4, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3)).double()


def _replicated(train: Flowers, count: int, iterations: int) -> TrainingResult:
    return dp_train(
        make_model,
        one_by_one(train.inputs, train.targets),
        devices=["cpu"] * count,
        n_iter=iterations,
        lr=LEARNING_RATE,
        loss_fn=F.cross_entropy,
        forward_fn=lambda model, flower: model(flower[0]),
        target_fn=lambda flower: flower[1],
        seed=SEED,
        verbose=None,
    )


def _alone(train: Flowers, replicated: TrainingResult) -> Trained:
    """One model, on the flowers of each step of the replicas as one batch."""
    model = make_model()
    adam = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    start = time.perf_counter()
    batches = as_batches(replicated.indices, train.inputs, train.targets)
    losses = train_plain(model, batches, adam, F.cross_entropy)
    last = losses[-replicated.steps_per_pass :]
    batch = len(replicated.indices[0])
    return Trained(
        name=f"plain loop, batches of {batch}",
        model=model,
        last_loss=sum(last) / len(last),
        seconds=time.perf_counter() - start,
    )


def _as_trained(count: int, result: TrainingResult) -> Trained:
    assert result.last_pass_loss is not None
    return Trained(
        name=f"dp_train, {units.counted(count, 'replica')}",
        model=result.model,
        last_loss=result.last_pass_loss,
        seconds=result.elapsed_seconds,
    )


def _table(trained: Sequence[Trained], train: Flowers, test: Flowers) -> Table:
    return Table(
        headers=("Trained by", "Loss, last pass", "Right, trained on", "Right, held out", "Took"),
        rows=tuple(
            (
                one.name,
                f"{one.last_loss:.4f}",
                _percent(train.accuracy(one.model)),
                _percent(test.accuracy(one.model)),
                units.seconds(one.seconds),
            )
            for one in trained
        ),
        words=("Trained by",),
    )


def _accurate(trained: Trained, test: Flowers) -> Check:
    accuracy = test.accuracy(trained.model)
    least = _percent(LEAST_ACCURACY)
    return Check(
        claim=f"{trained.name}: at least {least} of the held-out flowers are right",
        holds=accuracy >= LEAST_ACCURACY,
        found=_percent(accuracy),
    )


def _equal(count: int, model: nn.Module, alone: nn.Module) -> Check:
    difference = largest_difference(model, alone)
    return Check(
        claim=f"{units.counted(count, 'replica')} = the plain loop with batches of {count}, to "
        f"{TOLERANCE:g}",
        holds=difference <= TOLERANCE,
        found=f"largest difference {difference:.1e}",
    )


def _percent(share: float) -> str:
    return units.percent(share, digits=3)
