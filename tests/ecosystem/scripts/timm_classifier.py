"""A plain loop over a model and an optimizer of timm."""

import torchvision_operators as torchvision_operators  # isort: skip
import timm
import timm.optim
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=32, patch_size=16, depth=1, num_classes=4
)
model = DistributedDataParallel(model)
optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3)
data = TensorDataset(torch.randn(4_000, 3, 32, 32), torch.randint(4, (4_000,)))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
for inputs, targets in loader:
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
