"""The output of a training as it goes: lines for people, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TextIO

from dpbench import units
from dpbench.analysis.formatting import percent, three_digits
from dpbench.messages import print_result, say
from dpbench.specs import series_name
from dpbench.specs.training import TrainingSpec
from dpbench.training.events import EndLine, EpochLine, Event, StartLine, StepLine, to_line
from dpbench.training.run_folder import TrainingJob
from dpbench.units import counted

UNEVEN_MEMORY_RATIO = 1.2
"""Largest ÷ mean of the ranks, above which one of them holds the others back."""


class TrainingProgress:
    """Prints the events of a training as they come."""

    def __init__(
        self,
        job: TrainingJob,
        stream: TextIO | None,
        *,
        quiet: bool = False,
        memory: bool = False,
        json_lines: bool = False,
        as_json: bool = False,
    ) -> None:
        """Lines for people go to `stream`, if there is one: only the end if `quiet`, and
        every rank's memory with `memory`. With `json_lines` each event is a result of the command
        in their place, and with `as_json` the end is one."""
        self._job, self._stream, self._quiet, self._memory = job, stream, quiet, memory
        self._json_lines, self._as_json = json_lines, as_json

    def hear(self, event: Event) -> None:
        """Print one event."""
        job = self._job
        match event:
            case StartLine():
                self._start = event
                if event.checkpoint is not None:
                    done = counted(event.step, "optimizer step")
                    say(f"resuming from {event.checkpoint}, after {done}")
                elif job.resume is not None:
                    say("there is no checkpoint: training starts from the beginning")
                size = size_line(job, event.steps_per_epoch, event.item, event.items_per_sample)
                lines = [size, started_line(event, job.spec)]
            case StepLine():
                lines = [step_line(event, self._start)]
            case EpochLine():
                lines = [epoch_line(event)]
            case EndLine():
                lines = [finished_line(event, self._start, job)]
        if self._json_lines:
            print_result(to_line(event) + "\n")
        elif isinstance(event, EndLine) or not self._quiet:
            self._print(*lines)
        if isinstance(event, EndLine) and self._memory:
            self._print(*memory_lines(event, job.spec))
        if isinstance(event, EndLine) and self._as_json:
            print_result(json.dumps({**asdict(event), "folder": str(job.folder)}) + "\n")

    def _print(self, *lines: str) -> None:
        if self._stream is not None:
            print(*lines, sep="\n", file=self._stream, flush=True)


def size_line(job: TrainingJob, steps_per_epoch: int, item: str, items_per_sample: int) -> str:
    """Writes "batch 64 × 2 replicas × accumulation 4 = 512 samples per step, 3 steps per epoch, 5
    epochs"."""
    spec, most = job.spec, job.run.max_steps
    factors = [f"batch {spec.batch_size:,}", counted(spec.group_size, "replica")]
    if spec.accumulate > 1:
        factors.append(f"accumulation {spec.accumulate:,}")
    contents = "" if items_per_sample == 1 else f" of {items_per_sample:,} {item}"
    return (
        f"{' × '.join(factors)} = {counted(spec.effective_batch_size, 'sample')}{contents} "
        f"per step, {counted(steps_per_epoch, 'step')} per epoch, {counted(spec.epochs, 'epoch')}"
        + ("" if most is None else f", at most {counted(most, 'step')}")
    )


def started_line(event: StartLine, spec: TrainingSpec) -> str:
    """Writes "mlp on digits, 50,826 parameters: ddp/gloo ×2 on cpu, cpu"."""
    series = series_name(spec.implementation, spec.backend)
    hosts = len(set(event.hosts))
    where = ", ".join(spec.devices) + (f" of {hosts} hosts" if hosts > 1 else "")
    return (
        f"{spec.workload.architecture} on {spec.workload.dataset}, {event.parameters:,} "
        f"parameters: {series} ×{spec.group_size} on {where}"
    )


def rate_words(samples_per_second: float, started: StartLine) -> str:
    """Writes "3,412 images/s"."""
    return f"{three_digits(samples_per_second * started.items_per_sample)} {started.item}/s"


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
        parts.append(f"{percent(event.data_wait_share)} waiting for data")
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


def finished_line(event: EndLine, started: StartLine, job: TrainingJob) -> str:
    """Writes "finished: test accuracy 97.2 %, final loss 0.0123; 115 steps, 21 s, 3,412 images/s
    with evaluation; state 0123456789ab; in runs/x"; or "stopped: …" before all epochs."""
    reached = f"final loss {event.final_loss:.4f}"
    if event.test_accuracy is not None:
        reached = f"test accuracy {100 * event.test_accuracy:.1f} %, {reached}"
    how = "finished" if event.epochs >= job.spec.epochs else "stopped"
    line = f"{how}: {reached}; {counted(event.steps, 'step')}"
    if event.skipped_steps:
        line += f" ({event.skipped_steps:,} skipped: gradients overflowed in float16)"
    if event.samples and event.elapsed_seconds:
        seconds = units.seconds(event.elapsed_seconds)
        rate = rate_words(event.samples / event.elapsed_seconds, started)
        line += f", {seconds}, {rate} with evaluation"
    return f"{line}; state {event.state_sha256[:12]}; in {job.folder}"


def memory_lines(event: EndLine, spec: TrainingSpec) -> Iterator[str]:
    """Peak memory of each process, and its imbalance."""
    measured: list[tuple[str, list[int]]] = []
    for kind, name in (("host", "host"), ("device", "device"), ("reserved device", "reserved")):
        held = [getattr(peaks, f"{name}_bytes") for peaks in event.peaks]
        measured += [(kind, held)] if None not in held else []
    for rank in range(spec.process_count):
        sizes = ", ".join(f"{units.bytes_binary(held[rank])} of {kind}" for kind, held in measured)
        on = spec.devices[rank] if spec.process_count > 1 else ", ".join(spec.devices)
        yield f"rank {rank} on {on}: at most {sizes} memory"
    for kind, held in measured:
        ratio = max(held) * len(held) / sum(held)
        if len(held) > 1:
            flag = f", above {UNEVEN_MEMORY_RATIO:g}: uneven" if ratio > UNEVEN_MEMORY_RATIO else ""
            yield f"{kind} memory, largest ÷ mean of ranks: {ratio:.2f}{flag}"
