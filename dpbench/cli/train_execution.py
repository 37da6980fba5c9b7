"""What `dpbench train` does once its options are right: say, train, conclude."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import IO, Any

from dpbench import architecture, units
from dpbench.cli import train_words as words
from dpbench.cli.messages import say
from dpbench.cli.this_machine import here
from dpbench.cli.train_asked import TrainRequest
from dpbench.cli.train_output import Listener, listener, print_result
from dpbench.cli.train_preparation import Samples, TrainPlan, plan_here, samples
from dpbench.cli.train_run import run_here
from dpbench.launch.machine import inspect_machine
from dpbench.training.events import Finished
from dpbench.training_spec import TrainingSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOutput:
    """What is printed, and where."""

    dry_run: bool = False
    memory: bool = False
    json_result: bool = False
    json_lines: bool = False
    quiet: bool = False
    to_stderr: bool = False

    @classmethod
    def of(cls, typed: Mapping[str, Any]) -> TrainOutput:
        """What the command's parameters of these names say."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: typed[name] for name in names if name in typed})

    @property
    def stream(self) -> IO[str]:
        """Of what people read."""
        apart = self.json_result or self.json_lines or self.to_stderr
        return sys.stderr if apart else sys.stdout

    def write(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


def execute(request: TrainRequest, output: TrainOutput) -> int:
    """Trains, prints the result, and returns the exit status."""
    if output.dry_run:
        plan = plan_here(request, inspect_machine())
        with samples(plan.spec, request.settings.data_dir, embedded=False) as ready:
            introduce(plan, ready, output)
        return 0
    plan, finished = train_here(request, output)
    conclude(finished, plan, output)
    return 0


def train_here(request: TrainRequest, output: TrainOutput) -> tuple[TrainPlan, Finished]:
    """Trains on this host; raises DpbenchError."""
    machine = inspect_machine()
    plan = plan_here(request, machine)
    if finished := plan.completed():
        say(f"{plan.place.path} is complete; --epochs {plan.spec.epochs + 1} would train on")
        return plan, finished
    with samples(plan.spec, request.settings.data_dir, embedded=request.embedded) as ready:
        introduce(plan, ready, output)
        now = here(machine, synthetic=False)
        return plan, run_here(plan, ready, now, listener_for(plan, ready, output))


def introduce(plan: TrainPlan, ready: Samples, output: TrainOutput) -> None:
    """Says how large a step is, before anything runs."""
    spec = plan.spec
    if not (output.quiet or output.json_lines):
        size = words.batch(spec, ready.steps_per_epoch, contents_of(spec))
        most = plan.run.max_steps
        end = "" if most is None else f", at most {units.counted(most, 'step')}"
        output.write(f"{size}, {units.counted(spec.epochs, 'epoch')}{end}")
    if spec.effective_batch_size > ready.count and spec.accumulation_steps > 1:
        say(
            f"--accumulate {spec.accumulation_steps}: one step would take "
            f"{spec.effective_batch_size:,} samples and there are {ready.count:,}, so each epoch "
            "is one smaller step"
        )


def listener_for(plan: TrainPlan, ready: Samples, output: TrainOutput) -> Listener:
    steps = ready.steps_per_epoch * plan.spec.epochs
    return listener(
        plan.spec,
        steps if plan.run.max_steps is None else min(steps, plan.run.max_steps),
        quiet=output.quiet,
        json_lines=output.json_lines,
        stream=output.stream,
    )


def contents_of(spec: TrainingSpec) -> str:
    """Writes " of 64 tokens" of samples that hold several items, which speeds count."""
    loaded = architecture.load(spec.workload.architecture)
    count = architecture.items_per_sample(loaded)
    return "" if count == 1 else f" of {count:,} {loaded.item}"


def conclude(finished: Finished, plan: TrainPlan, output: TrainOutput) -> None:
    """Prints the result."""
    folder = plan.place.path
    if not output.json_lines:
        output.write(words.finished(finished, plan.spec.epochs, str(folder)))
    if output.memory:
        for line in words.memory(finished, plan.spec.devices):
            output.write(line)
    if output.json_result:
        print_result(finished, folder)
