"""A loop over a task and an optimizer of timm, as in its train.py."""

import torchvision_operators as torchvision_operators  # isort: skip
import timm
import timm.optim
import torch
import torch.distributed as dist
from timm.task import ClassificationTask
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if not dist.is_initialized():
    dist.init_process_group("gloo")
model = timm.create_model("resnet10t", num_classes=4)
task = ClassificationTask(model, criterion_kwargs={"smoothing": 0.1})
task.prepare_distributed()
optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3)
data = TensorDataset(torch.randn(4_000, 3, 32, 32), torch.randint(4, (4_000,)))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
for inputs, targets in loader:
    task(inputs, targets)["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
