"""One process, several replicas: the model is on every device, each takes a part of the batch.

python docs/recipes/data_parallel.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dpbench


class Classifier(nn.Module):
    """Returns its loss beside the logits where it gets targets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, inputs: Tensor, targets: Tensor | None = None) -> tuple[Tensor, ...]:
        logits = self.layers(inputs)
        return (logits,) if targets is None else (logits, F.cross_entropy(logits, targets))


def main() -> float:
    gpus = torch.cuda.device_count()
    devices = [f"cuda:{index}" for index in range(gpus)] if gpus > 1 else ["cpu", "cpu"]
    torch.manual_seed(1)
    inputs = torch.randn(256, 20)
    targets = inputs[:, :3].argmax(dim=1)

    model = dpbench.DataParallel(Classifier().to(devices[0]), devices)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    # The loss of a batch that is spread over the devices: loss.backward() as ever.
    for _ in range(20):
        optimizer.zero_grad()
        logits, loss = model(inputs, targets=targets)
        loss.backward()
        optimizer.step()

    # Or without gathering a graph: each replica's backward runs where its forward did.
    for _ in range(20):
        optimizer.zero_grad()
        model(inputs, targets=targets)
        model.backward(scale=1.0)
        optimizer.step()

    # A batch that is too large for memory, in micro-batches of any size.
    optimizer.zero_grad()
    for part, labels in zip(inputs.split(100), targets.split(100), strict=True):
        model(part, targets=labels)
        loss = model.backward(scale=len(part) / len(inputs))
    optimizer.step()

    model.eval()
    with torch.no_grad():
        (logits,) = model(inputs)
    accuracy = (logits.argmax(dim=1).cpu() == targets).float().mean().item()
    print(f"{len(devices)} replicas, loss {loss.item():.3f}, accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
