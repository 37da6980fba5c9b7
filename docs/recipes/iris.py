"""150 iris flowers: dp_train beside the plain loop, on flowers that neither has seen.

Fisher's data (1936) come with scikit-learn. They are sorted by species, so that samples must be
shuffled, and a hold-out must be taken from every species.

pip install scikit-learn; python docs/recipes/iris.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_iris
from torch import Tensor, nn
from torch.nn import functional as F

import dpbench

STEPS, LEARNING_RATE, SEED = 1000, 2e-3, 42


def load_flowers() -> tuple[Tensor, Tensor, Tensor]:
    """Measures (150, 4), species (150,), and which flowers are held out: every fifth of each."""
    measures, species = load_iris(return_X_y=True)
    held_out = torch.arange(len(species)) % 5 == 4
    inputs = torch.from_numpy(measures)
    known = inputs[~held_out]
    return (inputs - known.mean(0)) / known.std(0), torch.from_numpy(species).long(), held_out


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3)).double()


def train_replicas(
    inputs: Tensor, species: Tensor, count: int, steps: int
) -> dpbench.TrainingResult:
    return dpbench.dp_train(
        make_model,
        # dp_train takes one sample after the other, here as batches of one.
        [(inputs[i : i + 1], species[i : i + 1]) for i in range(len(species))],
        devices=["cpu"] * count,
        n_iter=steps,
        lr=LEARNING_RATE,
        loss_fn=F.cross_entropy,
        forward_fn=lambda model, flower: model(flower[0]),
        target_fn=lambda flower: flower[1],
        seed=SEED,
        verbose=False,
    )


def train_plain(inputs: Tensor, species: Tensor, replicated: dpbench.TrainingResult) -> nn.Module:
    """One model, on the flowers of each step of the replicas as one batch."""
    model = make_model()
    adam = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for step in replicated.indices:
        batch = [index for replica in step for index in replica]
        adam.zero_grad()
        F.cross_entropy(model(inputs[batch]), species[batch]).backward()
        adam.step()
    return model


def main(steps: int = STEPS) -> dict[str, float]:
    """Returns the share of held-out flowers whose species each model names."""
    inputs, species, held_out = load_flowers()
    accuracies = {}
    for count in (1, 2):
        replicated = train_replicas(inputs[~held_out], species[~held_out], count, steps)
        plain = train_plain(inputs[~held_out], species[~held_out], replicated)
        for name, model in ((f"dp_train ×{count}", replicated.model), (f"plain ×{count}", plain)):
            named = model(inputs[held_out]).argmax(dim=1)
            accuracies[name] = float((named == species[held_out]).double().mean())
            print(f"{name}: {accuracies[name]:.1%} of the held-out flowers")
    return accuracies


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
