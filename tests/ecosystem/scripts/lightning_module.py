"""Lightning's Trainer: with the number of devices from the launcher, or as it is given."""

import os
import sys

import torchvision_operators as torchvision_operators  # isort: skip
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


devices = int(sys.argv[1]) if sys.argv[1:] else int(os.environ["WORLD_SIZE"])
data = TensorDataset(torch.randn(100_000, 32), torch.randint(4, (100_000,)))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=devices,
    strategy="ddp",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Classifier(), DataLoader(data, 4))
