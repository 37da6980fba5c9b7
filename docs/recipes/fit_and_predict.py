"""A model with fit and predict, of which every device does a part.

python docs/recipes/fit_and_predict.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dpbench


class ParallelClassifier:
    """fit and predict as scikit-learn has them, over replicas of `module`."""

    def __init__(self, module: nn.Module, devices: Sequence[str]) -> None:
        self.model = dpbench.DataParallel(module.to(devices[0]), list(devices))

    def fit(self, inputs: Tensor, targets: Tensor, *, epochs: int, batch_size: int) -> list[float]:
        """Trains; returns the loss of each step."""
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.model.train()
        losses = []
        for _ in range(epochs):
            for rows in torch.randperm(len(inputs)).split(batch_size):
                optimizer.zero_grad()
                logits = self.model(inputs[rows])
                loss = F.cross_entropy(logits, targets[rows].to(logits.device))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """The class of each row."""
        self.model.eval()
        return self.model(inputs).argmax(dim=1).cpu()


def main() -> float:
    torch.manual_seed(1)
    inputs = torch.randn(300, 10)
    targets = (inputs.sum(dim=1) > 0).long()
    module = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))

    classifier = ParallelClassifier(module, ["cpu", "cpu"])
    losses = classifier.fit(inputs, targets, epochs=10, batch_size=50)
    accuracy = (classifier.predict(inputs) == targets).float().mean().item()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
