"""What a training prints: lines for people, and JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from dpbench import units
from dpbench.messages import in_python, print_result, say
from dpbench.options.train import TrainOptions
from dpbench.specs import series_name
from dpbench.specs.training import TrainingSpec
from dpbench.training.events import (
    EndLine,
    EpochLine,
    Event,
    NoteLine,
    StartLine,
    StepLine,
    to_line,
)
from dpbench.units import counted

UNEVEN_MEMORY = 1.2
"""Largest ÷ mean of the ranks, above which one of them holds the others back."""


def _write(options: TrainOptions, line: str) -> None:
    """Print a line for people, on stderr where stdout is for a program."""
    apart = options.as_json or options.json_lines or in_python()
    print(line, file=sys.stderr if apart else sys.stdout, flush=True)


def introduce(
    options: TrainOptions, spec: TrainingSpec, steps_per_epoch: int, contents: str
) -> None:
    """Print the size of a step, before anything runs; `contents` describes a sample.

    With --dry-run this is the result: --quiet prints it too, and JSON has it.
    """
    most = options.max_steps
    if options.dry_run and (options.as_json or options.json_lines):
        sizes = {
            "batch_size": spec.batch_size,
            "group_size": spec.group_size,
            "accumulation_steps": spec.accumulation_steps,
            "samples_per_step": spec.effective_batch_size,
            "steps_per_epoch": steps_per_epoch,
            "epochs": spec.epochs,
            "max_steps": most,
        }
        print_result(json.dumps(sizes) + "\n")
    if options.dry_run or not (options.quiet or options.json_lines):
        end = "" if most is None else f", at most {counted(most, 'step')}"
        size = batch_line(spec, steps_per_epoch, contents)
        _write(options, f"{size}, {counted(spec.epochs, 'epoch')}{end}")


def event_printer(
    options: TrainOptions, spec: TrainingSpec, folder: Path
) -> Callable[[Event], None]:
    """A function that prints the events of a training as they come: notes in any case, and the end
    except for a Python call, which returns it."""
    start: list[StartLine] = []

    def print_event(event: Event) -> None:
        if isinstance(event, StartLine):
            start[:] = [event]
        if options.json_lines:
            print_result(to_line(event) + "\n")
        elif isinstance(event, NoteLine):
            say(event.text)
        elif isinstance(event, EndLine):
            if not in_python():
                _write(options, finished_line(event, start[0], spec.epochs, str(folder)))
        elif options.quiet:
            return
        elif isinstance(event, StartLine):
            _write(options, started_line(event, spec))
        elif isinstance(event, StepLine):
            _write(options, step_line(event, start[0]))
        elif isinstance(event, EpochLine):
            _write(options, epoch_line(event))

    return print_event


def conclude(options: TrainOptions, finished: EndLine, spec: TrainingSpec, folder: Path) -> None:
    """Print what the options ask for of a training that has ended."""
    if options.memory:
        for line in memory_lines(finished, spec):
            _write(options, line)
    if options.as_json:
        print_result(json.dumps({**asdict(finished), "folder": str(folder)}) + "\n")


def batch_line(spec: TrainingSpec, steps_per_epoch: int, contents: str = "") -> str:
    """Writes "batch 64 × 2 replicas × accumulation 4 = 512 samples per step, 3 steps per epoch",
    with `contents` behind the samples."""
    factors = [f"batch {spec.batch_size:,}", counted(spec.group_size, "replica")]
    if spec.accumulation_steps > 1:
        factors.append(f"accumulation {spec.accumulation_steps:,}")
    return (
        f"{' × '.join(factors)} = {counted(spec.effective_batch_size, 'sample')}{contents} "
        f"per step, {counted(steps_per_epoch, 'step')} per epoch"
    )


def started_line(event: StartLine, spec: TrainingSpec) -> str:
    """Writes "mlp on digits, 50,826 parameters: ddp/gloo ×2 on cpu, cpu"."""
    series = series_name(spec.implementation, spec.backend)
    hosts = len(set(event.hosts))
    where = f"{', '.join(spec.devices)}" + (f" of {hosts} hosts" if hosts > 1 else "")
    return (
        f"{spec.workload.architecture} on {spec.workload.dataset}, {event.parameters:,} "
        f"parameters: {series} ×{spec.group_size} on {where}"
    )


def rate_words(samples_per_second: float, started: StartLine) -> str:
    """Writes "3,412 images/s"."""
    return f"{units.three_digits(samples_per_second * started.items_per_sample)} {started.item}/s"


def step_line(event: StepLine, started: StartLine) -> str:
    """Writes "epoch 1  step 20  [2,560/2,874 (89 %)]  loss 0.4213  lr 1.0e+00  3,412 images/s",
    with the samples of rank 0 where there are others."""
    done = 100 * event.processed / event.total
    counts = f"{event.processed:,}/{event.total:,} ({done:.0f} %)"
    if started.world_size > 1:
        counts += f", rank 0: {event.rank_processed:,}/{event.rank_total:,}"
    parts = [
        f"epoch {event.epoch}",
        f"step {event.step:,}",
        f"[{counts}]",
        f"loss {event.loss:.4f}",
        f"lr {event.learning_rate:.1e}",
        rate_words(event.samples_per_second, started),
    ]
    if event.gradient_norm is not None:
        parts.append(f"gradient norm {event.gradient_norm:.3g}")
    if event.data_wait_share >= 0.01:
        parts.append(f"{units.percent(event.data_wait_share)} waiting for data")
    if event.skipped_steps:
        parts.append(f"{counted(event.skipped_steps, 'step')} skipped")
    return "  ".join(parts)


def epoch_line(event: EpochLine) -> str:
    """Writes "epoch 1: train loss 0.4, test loss 0.0911, accuracy 350/360 (97.2 %), lr 1.0e+00,
    4.1 s, checkpoint step-00000023.pt (best)"."""
    parts = [f"train loss {event.train_loss:.4f}"]
    if (score := event.score) is not None:
        parts.append(f"test loss {score.loss:.4f}")
        if score.accuracy is not None:
            correct = f"{score.correct:,}/{score.total:,}"
            parts.append(f"accuracy {correct} ({100 * score.accuracy:.1f} %)")
    parts += [f"lr {event.learning_rate:.1e}", units.seconds(event.epoch_seconds)]
    if event.evaluation_seconds is not None:
        parts[-1] += f" + {units.seconds(event.evaluation_seconds)} evaluation"
    if event.checkpoint:
        parts.append(f"checkpoint {event.checkpoint}" + (" (best)" if event.best else ""))
    if event.shares:
        parts.append(f"shares {':'.join(f'{share:.3g}' for share in event.shares)}")
    return f"epoch {event.epoch}: {', '.join(parts)}"


def finished_line(event: EndLine, started: StartLine, epochs: int, folder: str) -> str:
    """Writes "finished: test accuracy 97.2 %, final loss 0.0123; 115 steps, 21 s, 3,412 images/s
    with evaluation; state 0123456789ab; in runs/x"; or "stopped: …" before all `epochs`."""
    reached = f"final loss {event.final_loss:.4f}"
    if event.test_accuracy is not None:
        reached = f"test accuracy {100 * event.test_accuracy:.1f} %, {reached}"
    how = "finished" if event.epochs >= epochs else "stopped"
    line = f"{how}: {reached}; {counted(event.steps, 'step')}"
    if event.skipped_steps:
        line += f" ({event.skipped_steps:,} skipped: gradients overflowed in float16)"
    if event.samples and event.elapsed_seconds:
        seconds = units.seconds(event.elapsed_seconds)
        rate = rate_words(event.samples / event.elapsed_seconds, started)
        line += f", {seconds}, {rate} with evaluation"
    return f"{line}; state {event.state_sha256[:12]}; in {folder}"


def memory_lines(event: EndLine, spec: TrainingSpec) -> Iterator[str]:
    """Peak memory of each process, and its imbalance."""
    measured = [("host", event.peak_host_memory_bytes)]
    if event.peak_device_memory_bytes is not None:
        measured.append(("device", event.peak_device_memory_bytes))
    if event.peak_reserved_memory_bytes is not None:
        measured.append(("reserved device", event.peak_reserved_memory_bytes))
    for rank in range(spec.process_count):
        sizes = ", ".join(f"{units.bytes_binary(held[rank])} of {kind}" for kind, held in measured)
        on = spec.devices[rank] if spec.process_count > 1 else ", ".join(spec.devices)
        yield f"rank {rank} on {on}: at most {sizes} memory"
    for kind, held in measured:
        ratio = max(held) * len(held) / sum(held)
        if len(held) > 1:
            flag = f", above {UNEVEN_MEMORY:g}: uneven" if ratio > UNEVEN_MEMORY else ""
            yield f"{kind} memory, largest ÷ mean of ranks: {ratio:.2f}{flag}"
