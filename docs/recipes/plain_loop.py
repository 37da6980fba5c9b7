"""The plain loop on batches from torch's DataLoader, to compare with the data-parallel ones.

The last batch of an epoch may be smaller (drop_last=False), every epoch has another order, and the
seed repeats them.

python docs/recipes/plain_loop.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH_SIZE, SEED = 20, 32, 42


def main() -> tuple[float, list[list[int]]]:
    """Returns the share of samples that the model classifies right, and the batch sizes of each
    epoch."""
    torch.manual_seed(SEED)
    inputs = torch.randn(120, 4)
    targets = (inputs.sum(dim=1) > 0).long()
    loader = DataLoader(
        TensorDataset(inputs, targets),
        batch_size=BATCH_SIZE,
        shuffle=True,
        generator=torch.Generator().manual_seed(SEED),
    )
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sizes = []
    for _ in range(EPOCHS):
        sizes.append([])
        for batch, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch), labels).backward()
            optimizer.step()
            sizes[-1].append(len(batch))
    with torch.no_grad():
        accuracy = (model(inputs).argmax(dim=1) == targets).float().mean().item()
    print(f"batches of {sizes[0]} samples, accuracy {accuracy:.1%}")
    return accuracy, sizes


if __name__ == "__main__":
    main()
