"""Architectures whose ranks misbehave at their first step, each in its own way.

Named on the command line as `tests.launch.faulty:Raises` and so on. Only rank 1 misbehaves, so
that the other one is left waiting for it, as it would be in a real failure.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import torch

SLEEP_SECONDS = 3600


class Healthy:
    """A linear model that a rank trains in no time."""

    name = "faulty"
    item = "rows"
    default_dataset = "synthetic"

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Linear(4, 2)

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(n, 4, generator=generator)
        return inputs, inputs[:, :2] * 2

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # The timed part, after the gradients are verified.
        if outputs.dtype == torch.float32 and self.misbehaves:
            self.misbehave()
        return torch.nn.functional.mse_loss(outputs, targets)

    def misbehave(self) -> None:
        """Does what the subclass is named for."""

    @property
    def misbehaves(self) -> bool:
        """Rank 1, or the only rank."""
        last = int(os.environ.get("WORLD_SIZE", "1")) - 1
        return int(os.environ.get("RANK", "0")) == last


class Raises(Healthy):
    def misbehave(self) -> None:
        raise ValueError("the loss function is broken")


class Exits(Healthy):
    def misbehave(self) -> None:
        os._exit(7)


class LeavesQuietly(Healthy):
    def misbehave(self) -> None:
        os._exit(0)


class Killed(Healthy):
    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Healthy):
    def misbehave(self) -> None:
        time.sleep(SLEEP_SECONDS)


class Stops(Healthy):
    """Stopped as by Ctrl-Z: not even its own watchdog runs."""

    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class RunsOutOfMemory(Healthy):
    def misbehave(self) -> None:
        torch.empty(2**60, dtype=torch.uint8)


class MeetsItsMemoryLimit(Healthy):
    """Allocates more than its address space may hold, as under ulimit -v or a batch system."""

    def misbehave(self) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, hard))
        torch.ones(2**28)


class Diverges(Healthy):
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(outputs, targets)
        return loss * float("inf") if outputs.dtype == torch.float32 else loss


class DependsOnItsRank(Healthy):
    """The number of the rank enters the loss, so one process has other gradients."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(outputs, targets) * (1 + int(os.environ.get("RANK", "0")))


class TakesLong(Healthy):
    """A fifth of a second a step, in every rank: long enough to be interrupted."""

    misbehaves = True

    def misbehave(self) -> None:
        time.sleep(0.2)
