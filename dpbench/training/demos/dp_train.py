"""dp_train on 1, 2 and N replicas, with the checks of ggmlR's demo of it and an exact one more.

ggmlR checks that losses fall; they also fall with a wrong average of gradients. So here n replicas
of one sample must also end with the parameters of one model with batches of n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from dpbench import units
from dpbench.training.demos import equivalence, regression
from dpbench.training.demos.section import Check, Checks, Section, Table
from dpbench.training.demos.speed import STEPS, speeds
from dpbench.training.result import TrainingResult

CPU_REPLICAS = 4
SPEED_REPLICAS = (1, 2, 4)
WORSE_AT_MOST = 1.5
"""Loss with 2 replicas ÷ loss with 1."""
KEYS = ("params", "loss_history", "model")

Runs = Mapping[int, TrainingResult]
"""By number of replicas."""


def run() -> Iterator[Section]:
    """Trains, checks, then measures speeds, each shown as soon as it is there."""
    yield (
        f"Synthetic regression: {regression.SAMPLES} samples, model {regression.INPUTS} → "
        f"{regression.HIDDEN} → {regression.OUTPUTS}, {regression.ITERATIONS} iterations of 1 "
        f"sample per replica, Adam, learning rate {regression.LEARNING_RATE:g}, gradients clipped "
        f"to {regression.MAX_NORM:g}, on {_where()}:"
    )
    counts = replica_counts(torch.cuda.device_count())
    before = global_state()
    runs = {count: regression.train(_devices(count)) for count in counts}
    after = global_state()
    yield _losses(runs)
    yield Checks(
        checks=(
            *(check for count in counts for check in _of_one_run(count, runs[count])),
            _keys(runs[counts[-1]]),
            _two_replicas(runs),
            _restored(before, after),
            _inference(runs[counts[-1]]),
            *(_equivalence(count) for count in counts[1:]),
        ),
    )
    yield f"Speed over {STEPS} steps, measured once and checked by nothing:"
    yield _speed_table()


def replica_counts(gpus: int) -> tuple[int, ...]:
    """1, 2 and N: all GPUs, or 4 replicas on the CPU where there are fewer than two GPUs."""
    return tuple(sorted({1, 2, gpus if gpus >= 2 else CPU_REPLICAS}))


def global_state() -> dict[str, object]:
    """What belongs to the caller of dp_train and must be as it was."""
    return {
        "default device": str(torch.get_default_device()),
        "default dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "random state": torch.get_rng_state().numpy().tobytes(),
    }


def _devices(count: int) -> list[str]:
    gpus = torch.cuda.device_count()
    if gpus < 2:
        return ["cpu"] * count
    return [f"cuda:{index % gpus}" for index in range(count)]


def _losses(runs: Runs) -> Table:
    rows = []
    for count, result in runs.items():
        first, last = _thirds(result.loss_history)
        worst = max(result.norm_history)
        rows.append((str(count), *map("{:.4f}".format, (first, last, worst))))
    return Table(
        headers=("Replicas", "Loss, first third", "Loss, last third", "Largest gradient norm"),
        rows=tuple(rows),
    )


def _where() -> str:
    gpus = torch.cuda.device_count()
    return f"{gpus} GPUs" if gpus >= 2 else "the CPU"


def _of_one_run(count: int, result: TrainingResult) -> Iterator[Check]:
    replicas = units.counted(count, "replica")
    losses = result.loss_history
    yield Check(
        claim=f"{replicas}: a loss for every iteration",
        holds=len(losses) == regression.ITERATIONS,
        found=f"{len(losses)} of {regression.ITERATIONS}",
    )
    finite = sum(map(math.isfinite, losses))
    yield Check(
        claim=f"{replicas}: every loss is finite",
        holds=finite == len(losses),
        found=f"{finite} of {len(losses)}",
    )
    first, last = _thirds(losses)
    yield Check(
        claim=f"{replicas}: the last third's mean loss is below the first third's",
        holds=last < first,
        found=f"{last:.4f} against {first:.4f}",
    )


def _thirds(losses: Sequence[float]) -> tuple[float, float]:
    """Mean loss of the first and of the last third."""
    third = len(losses) // 3
    return sum(losses[:third]) / third, sum(losses[-third:]) / third


def _keys(result: TrainingResult) -> Check:
    missing = [key for key in KEYS if not hasattr(result, key)]
    return Check(
        claim=f"the result has {', '.join(KEYS)}",
        holds=not missing,
        found=f"lacks {', '.join(missing)}" if missing else "all of them",
    )


def _two_replicas(runs: Runs) -> Check:
    one, two = (_thirds(runs[count].loss_history)[1] for count in (1, 2))
    return Check(
        claim=f"2 replicas: last third's mean loss at most {WORSE_AT_MOST} × that of 1 replica",
        holds=two <= WORSE_AT_MOST * one,
        found=f"{two / one:.2f} ×",
    )


def _restored(before: dict[str, object], after: dict[str, object]) -> Check:
    changed = [key for key, value in before.items() if after[key] != value]
    return Check(
        claim=f"{', '.join(before)} are as before",
        holds=not changed,
        found=f"changed: {', '.join(changed)}" if changed else "all of them",
    )


def _inference(result: TrainingResult) -> Check:
    inputs, _ = regression.dataset()
    device = next(result.model.parameters()).device
    with torch.no_grad():
        outputs = result.model(inputs[:4].to(device))
    return Check(
        claim="the trained model answers with finite numbers",
        holds=bool(outputs.isfinite().all()),
        found=", ".join(f"{value:.3f}" for value in outputs[0].tolist()) + ", …",
    )


def _equivalence(count: int) -> Check:
    difference = equivalence.difference_from_one_model(_devices(count))
    return Check(
        claim=(
            f"{count} replicas of 1 sample = 1 model with batches of {count}, to "
            f"{equivalence.TOLERANCE:g} after {equivalence.STEPS} steps of SGD in float64"
        ),
        holds=difference <= equivalence.TOLERANCE,
        found=f"largest difference {difference:.1e}",
    )


def _speed_table() -> Table:
    rows = tuple(
        (
            speed.mode,
            str(speed.replicas),
            "not measured: the start varied more than the steps took"
            if speed.samples_per_second is None
            else f"{speed.samples_per_second:,.0f}",
            units.seconds(speed.start_seconds),
        )
        for speed in speeds([_devices(count) for count in SPEED_REPLICAS])
    )
    return Table(
        headers=("Mode", "Replicas", "Samples/s", "Start"),
        rows=rows,
        words=("Mode",),
    )
