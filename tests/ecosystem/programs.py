"""Twenty steps of training code of others, on the ranks of a launcher.

`dpbench launch --nproc-per-node 2 programs.py NAME IMPLEMENTATION BACKEND` trains with torch's
DistributedDataParallel or with ours in its place, and prints rank 0's loss of each step as JSON,
exactly (`float.hex`). Nothing is downloaded: models are built from their configuration.
"""

import json
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import dpbench
import dpbench.parallel
from tests.ecosystem.scripts import torchvision_operators as torchvision_operators

STEPS, BATCH = 20, 4


class Sentences(Dataset):
    """Seeded random tokens, as a causal language model takes them."""

    def __len__(self) -> int:
        return 2 * BATCH * STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Pictures(Dataset):
    """Seeded random images with one of four labels."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __len__(self) -> int:
        return 2 * BATCH * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = torch.Generator().manual_seed(index)
        return torch.randn(3, self.side, self.side, generator=noise), index % 4


def small_gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    config.bos_token_id = config.eos_token_id = 0
    return GPT2LMHeadModel(config)


def hf_trainer(folder: str, **options: bool) -> list[float]:
    """By default the Trainer sets find_unused_parameters=True."""
    from transformers import Trainer, TrainingArguments

    losses: list[float] = []

    class Recorded(Trainer):
        def training_step(self, *arguments, **keywords):
            loss = super().training_step(*arguments, **keywords)
            losses.append(float(loss))
            return loss

    settings = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    Recorded(model=small_gpt2(), args=settings, train_dataset=Sentences()).train()
    return losses


def hf_trainer_static(folder: str) -> list[float]:
    return hf_trainer(folder, ddp_static_graph=True, ddp_find_unused_parameters=False)


def accelerate(_: str) -> list[float]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Sentences(), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


def lightning(folder: str) -> list[float]:
    import lightning as L
    from lightning.pytorch.strategies import DDPStrategy

    losses: list[float] = []

    class Classifier(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)
            )
            self.net(torch.zeros(2, 3, 8, 8))

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
            images, labels = batch
            loss = nn.functional.cross_entropy(self.net(images), labels)
            losses.append(float(loss))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=torch.distributed.get_backend()),
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Classifier(), DataLoader(Pictures(8), batch_size=BATCH))
    return losses


def timm(_: str) -> list[float]:
    """The steps of timm's train.py: its loss with smoothing, its optimizer, its clipping."""
    from timm import create_model
    from timm.optim import create_optimizer_v2
    from timm.task import ClassificationTask
    from timm.utils import dispatch_clip_grad

    model = create_model("resnet10t", num_classes=4)
    optimizer = create_optimizer_v2(model, opt="nadamw", lr=1e-3, weight_decay=0.05)
    task = ClassificationTask(model, criterion_kwargs={"smoothing": 0.1})
    task.prepare_distributed()
    mine: DistributedSampler = DistributedSampler(Pictures(32), shuffle=False)
    losses = []
    for images, labels in DataLoader(Pictures(32), batch_size=BATCH, sampler=mine):
        loss = task(images, labels)["loss"]
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss))
    return losses


PROGRAMS: dict[str, Callable[[str], list[float]]] = {
    "hf_trainer": hf_trainer,
    "hf_trainer_static": hf_trainer_static,
    "accelerate": accelerate,
    "lightning": lightning,
    "timm": timm,
}


def main(name: str, implementation: str, backend: str, folder: str) -> None:
    if implementation == "ddp":
        nn.parallel.DistributedDataParallel = dpbench.DistributedDataParallel
        nn.parallel.distributed.DistributedDataParallel = dpbench.DistributedDataParallel
    torch.manual_seed(0)
    with dpbench.process_group(backend) as ranks:
        losses = PROGRAMS[name](folder)
        if ranks.rank == 0:
            print(json.dumps([loss.hex() for loss in losses]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
