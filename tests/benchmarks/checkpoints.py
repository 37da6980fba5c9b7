"""How long a checkpoint of 100 million parameters stops a training.

It is stopped for the copy to host memory; the disk is written to meanwhile. Of each pair the one
is beside the other, and the thread that writes has ended before. The first checkpoint is not
counted: its memory is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch import Tensor

from dpbench.specs import WorkloadSpec
from dpbench.specs.training import TrainingSpec
from dpbench.training import random_state
from dpbench.training.checkpoint import Checkpoint, to_plain
from dpbench.training.checkpoint_folder import CheckpointFolder
from tests.benchmarks.figure import Figure, Ratio, alternating

TENSORS = 100
PARAMETERS = 1_000_000
"""Of each tensor; SGD's momentum is as large again."""
PAIRS = 9
MOST_COPIES, MOST_SAVES = 1.1, 0.5


@dataclass(slots=True)
class Saving:
    """The checkpoints of one training that stands still."""

    checkpoint: Checkpoint
    folder: CheckpointFolder
    copies: list[Tensor]

    def stopped(self) -> float:
        """Seconds until the training may go on."""
        seconds = _timed(lambda: self.folder.save(self.checkpoint, best=False))
        self.folder.wait()
        return seconds

    def copied(self) -> float:
        """Seconds of the copy to host memory alone, into memory that is there."""
        return _timed(self._copy)

    def saved(self) -> float:
        """Seconds of torch.save, until the file is on disk."""
        return _timed(self._save)

    def _copy(self) -> None:
        for copy, tensor in zip(self.copies, _tensors(self.checkpoint), strict=True):
            copy.copy_(tensor, non_blocking=tensor.is_cuda)
        if copy.is_pinned():
            torch.cuda.synchronize()

    def _save(self) -> None:
        with Path(self.folder.folder / "plain").open("wb") as file:
            torch.save(to_plain(self.checkpoint), file)
            os.fsync(file.fileno())


def run() -> Iterator[Figure]:
    with TemporaryDirectory() as scratch, CheckpointFolder(Path(scratch), keep=1) as folder:
        checkpoint = _checkpoint()
        pinned = checkpoint.model["layer0.weight"].is_cuda
        copies = [torch.ones(PARAMETERS, pin_memory=pinned) for _ in range(2 * TENSORS)]
        saving = Saving(checkpoint, folder, copies)
        saving.stopped()
        parts: tuple[tuple[str, Callable[[], float], float], ...] = (
            ("time of the copy to host memory", saving.copied, MOST_COPIES),
            ("time of a blocking torch.save", saving.saved, MOST_SAVES),
        )
        for words, other, most in parts:
            ratio = Ratio.of(*alternating(saving.stopped, other, PAIRS))
            yield Figure(
                name=f"time that a checkpoint of {TENSORS * PARAMETERS / 1e6:g} million parameters "
                f"stops the training ÷ {words}",
                value=str(ratio),
                target=f"below {most}",
                met=ratio.value < most,
            )


def _timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def _tensors(checkpoint: Checkpoint) -> list[Tensor]:
    moments = checkpoint.optimizers[0]["state"].values()
    return [*checkpoint.model.values(), *(state["momentum_buffer"] for state in moments)]


def _checkpoint() -> Checkpoint:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    numbers = range(TENSORS)
    tensors = [torch.randn(PARAMETERS, device=device) for _ in range(2 * TENSORS)]
    state = {number: {"momentum_buffer": tensors[TENSORS + number]} for number in numbers}
    spec = TrainingSpec(
        workload=WorkloadSpec(architecture="mlp", dataset="synthetic"),
        implementation="single",
        backend="none",
        group_size=1,
        batch_size=1,
        devices=(str(device),),
        threads_per_replica=torch.get_num_threads(),
        epochs=1,
    )
    return Checkpoint(
        spec=spec,
        epoch=0,
        window=1,
        step=1,
        model={f"layer{number}.weight": tensors[number] for number in numbers},
        optimizers=[{"state": state, "param_groups": [{"lr": 0.1, "params": [*numbers]}]}],
        scaler=None,
        random_states=[random_state.take(device)],
        shares=(),
        samples_sha256="",
        best_metric=None,
    )
