"""Messages about a training, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpbench import units
from dpbench.report.progress.words import speed
from dpbench.specs import series_name
from dpbench.specs.training import TrainingSpec
from dpbench.training.events import EpochLine, Finished, Started, StepLine

UNEVEN_MEMORY = 1.2
"""Largest ÷ mean of the ranks, above which one of them holds the others back."""


def batch(spec: TrainingSpec, steps_per_epoch: int, contents: str = "") -> str:
    """Writes "batch 64 × 2 replicas × accumulation 4 = 512 samples per step, 3 steps per epoch",
    with `contents` behind the samples."""
    factors = [f"batch {spec.batch_size:,}", units.counted(spec.group_size, "replica")]
    if spec.accumulation_steps > 1:
        factors.append(f"accumulation {spec.accumulation_steps:,}")
    return (
        f"{' × '.join(factors)} = {units.counted(spec.effective_batch_size, 'sample')}{contents} "
        f"per step, {units.counted(steps_per_epoch, 'step')} per epoch"
    )


def started(event: Started, spec: TrainingSpec) -> str:
    """Writes "mlp on digits, 50,826 parameters: ddp/gloo ×2 on cpu, cpu"."""
    series = series_name(spec.implementation, spec.backend)
    hosts = len(set(event.hosts))
    where = f"{', '.join(event.devices)}" + (f" of {hosts} hosts" if hosts > 1 else "")
    return (
        f"{spec.workload.architecture} on {spec.workload.dataset}, {event.parameters:,} "
        f"parameters: {series} ×{event.group_size} on {where}"
    )


def rate(samples_per_second: float, of: Started | Finished) -> str:
    """Writes "3,412 images/s"."""
    return f"{speed(samples_per_second * of.items_per_sample)} {of.item}/s"


def step(event: StepLine, started: Started) -> str:
    """Writes "epoch 1  step 20  [2,560/2,874 ( 89 %)]  loss 0.4213  lr 1.0e+00  3,412 images/s",
    with the samples of rank 0 where there are others."""
    counts = (
        f"{_count(event.processed, event.total)} ({100 * event.processed / event.total:3.0f} %)"
    )
    if started.world_size > 1:
        counts += f", rank 0: {_count(event.rank_processed, event.rank_total)}"
    parts = [
        f"epoch {event.epoch}",
        f"step {event.step:,}",
        f"[{counts}]",
        f"loss {event.loss:.4f}",
        f"lr {event.learning_rate:.1e}",
        rate(event.samples_per_second, started),
    ]
    if event.gradient_norm is not None:
        parts.append(f"gradient norm {event.gradient_norm:.3g}")
    if event.data_wait_share >= 0.01:
        parts.append(f"{units.percent(event.data_wait_share)} waiting for data")
    if event.skipped_steps:
        parts.append(f"{units.counted(event.skipped_steps, 'step')} skipped")
    return "  ".join(parts)


def epoch(event: EpochLine) -> str:
    """Writes "epoch 1: train loss 0.4, test loss 0.0911, accuracy 350/360 (97.2 %), lr 1.0e+00,
    4.1 s, checkpoint step-00000023.pt (best)"."""
    parts = [f"train loss {event.train_loss:.4f}"]
    if event.test_loss is not None:
        parts.append(f"test loss {event.test_loss:.4f}")
    if event.test_accuracy is not None:
        of = f"{event.test_correct:,}/{event.test_total:,}"
        parts.append(f"accuracy {of} ({_percent(event.test_accuracy)})")
    parts += [f"lr {event.learning_rate:.1e}", units.seconds(event.epoch_seconds)]
    if event.evaluation_seconds is not None:
        parts[-1] += f" + {units.seconds(event.evaluation_seconds)} evaluation"
    if event.checkpoint:
        parts.append(f"checkpoint {event.checkpoint}" + (" (best)" if event.best else ""))
    if event.shares:
        parts.append(f"shares {':'.join(f'{share:.3g}' for share in event.shares)}")
    return f"epoch {event.epoch}: {', '.join(parts)}"


def finished(event: Finished, epochs: int, folder: str) -> str:
    """Writes "finished: test accuracy 97.2 %, final loss 0.0123; 115 steps, 21 s, 3,412 images/s
    with evaluation; state 0123456789ab; in runs/x"; or "stopped: …" before all `epochs`."""
    reached = f"final loss {event.final_loss:.4f}"
    if event.test_accuracy is not None:
        reached = f"test accuracy {_percent(event.test_accuracy)}, {reached}"
    how = "finished" if event.epochs >= epochs else "stopped"
    line = f"{how}: {reached}; {event.steps:,} steps"
    if event.samples and event.elapsed_seconds:
        seconds = units.seconds(event.elapsed_seconds)
        line += f", {seconds}, {rate(event.samples / event.elapsed_seconds, event)} with evaluation"
    return f"{line}; state {event.state_sha256[:12]}; in {folder}"


def memory(event: Finished, devices: Sequence[str]) -> Iterator[str]:
    """Peak memory of each process, and its imbalance."""
    measured = [("host", event.peak_host_memory_bytes)]
    if event.peak_device_memory_bytes is not None:
        measured.append(("device", event.peak_device_memory_bytes))
    if event.peak_reserved_memory_bytes is not None:
        measured.append(("reserved device", event.peak_reserved_memory_bytes))
    for rank in range(event.world_size):
        sizes = ", ".join(f"{units.bytes_binary(held[rank])} of {of}" for of, held in measured)
        on = devices[rank] if event.world_size == event.group_size else ", ".join(devices)
        yield f"rank {rank} on {on}: at most {sizes} memory"
    for of, held in measured:
        ratio = max(held) * len(held) / sum(held)
        if len(held) > 1:
            flag = f", above {UNEVEN_MEMORY:g}: uneven" if ratio > UNEVEN_MEMORY else ""
            yield f"{of} memory, largest ÷ mean of ranks: {ratio:.2f}{flag}"


def _percent(share: float) -> str:
    """To a tenth of a percent, as accuracies are compared."""
    return f"{100 * share:.1f} %"


def _count(done: int, total: int) -> str:
    """Aligned, since lines stand below each other: " 2,560/14,370"."""
    whole = f"{total:,}"
    return f"{done:>{len(whole)},}/{whole}"
