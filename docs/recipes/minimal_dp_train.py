"""A whole loop in one call, for 1, 2 and more replicas, with checks and the speed of each.

Each replica takes one sample per step, so more replicas mean larger batches. The exit status is 1
if a check fails.

python docs/recipes/minimal_dp_train.py
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dpbench

STEPS = 100
THIRD = STEPS // 3
Sample = tuple[Tensor, Tensor]


def make_model() -> nn.Module:
    """The same weights in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(42)
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def make_samples() -> list[Sample]:
    """128 samples: four inputs, and two targets that depend on them."""
    inputs = torch.randn(128, 4, generator=torch.Generator().manual_seed(42))
    targets = torch.stack([inputs.sum(dim=1), inputs[:, 0] * 2], dim=1)
    return list(zip(inputs, targets, strict=True))


def train(samples: list[Sample], replicas: int) -> dpbench.TrainingResult:
    gpus = torch.cuda.device_count()
    return dpbench.dp_train(
        make_model,
        samples,
        devices=[f"cuda:{i % gpus}" if gpus else "cpu" for i in range(replicas)],
        n_iter=STEPS,
        lr=5e-3,
        max_norm=5.0,  # clips the gradient after it was averaged over the replicas
        forward_fn=lambda model, sample: model(sample[0]),
        target_fn=lambda sample: sample[1],
        loss_fn=F.mse_loss,
        verbose=False,
    )


def settings() -> tuple[object, ...]:
    """What dp_train must leave as it was."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    threads, grad_mode = torch.get_num_threads(), torch.is_grad_enabled()
    return device, torch.get_default_device(), threads, grad_mode, torch.get_rng_state().tolist()


def check(result: dpbench.TrainingResult, inputs: Tensor) -> dict[str, bool]:
    """What must hold for a result, by name."""
    losses, device = result.loss_history, next(result.model.parameters()).device
    with torch.no_grad():
        output = result.model(inputs.to(device))
    return {
        "one loss, norm and choice of samples per step": STEPS
        == len(losses)
        == len(result.norm_history)
        == len(result.indices),
        "finite losses": all(map(math.isfinite, losses)),
        "a loss that falls": sum(losses[-THIRD:]) < sum(losses[:THIRD]),
        "the last loss as `loss`": result.loss == losses[-1],
        "the parameters as `params`": list(result.params)
        == [name for name, _ in result.model.named_parameters()],
        "a model to use": bool(output.isfinite().all()),
    }


def main() -> list[str]:
    """Train with each number of replicas; returns the checks that failed."""
    samples, failed, final = make_samples(), [], dict[int, float]()
    train(samples, 1)  # the first training of a process is slower
    for replicas in sorted({1, 2, max(4, torch.cuda.device_count())}):
        before = settings()
        result = train(samples, replicas)
        checks = check(result, samples[0][0]) | {"settings restored": settings() == before}
        final[replicas] = sum(result.loss_history[-THIRD:]) / THIRD
        failed += [f"{replicas} replicas: {name}" for name, holds in checks.items() if not holds]
        print(
            f"{replicas} replicas: mean loss of the last third {final[replicas]:.3f}, "
            f"{STEPS * replicas / result.elapsed_seconds:,.0f} samples/s"
        )
    if final[2] > 1.5 * final[1]:
        failed.append("2 replicas learn as much as 1")
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    if failures := main():
        sys.exit("failed: " + "; ".join(failures))
