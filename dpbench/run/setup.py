"""What there is to measure with, and whether it works here: `dpbench list` and `dpbench doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from dpbench import architecture, units
from dpbench.data.registry import DATASETS, MNIST, MNIST_PLACE
from dpbench.launch.collective_runner import self_test
from dpbench.launch.machine import inspect_machine, missing_package_reason
from dpbench.messages import say
from dpbench.options.reading import PRESETS
from dpbench.options.sweep import SweepOptions
from dpbench.options.train import TrainOptions
from dpbench.rendezvous.backends import missing_backends
from dpbench.report.answer import Answer
from dpbench.report.answers.setup import NameEntry, doctor_answer, names_answer
from dpbench.report.charts.kinds import CHARTS
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS


def list_names(kind: str | None) -> Answer:
    """The names of a kind, or of all, and whether they can be used here."""
    return names_answer([entry for entry in _names() if kind in (None, entry.kind)])


def _names() -> Iterator[NameEntry]:
    """All names, kind by kind."""
    has_cuda, unusable = torch.cuda.device_count() > 0, missing_backends()
    for name in architecture.shipped_architectures():
        yield NameEntry("architectures", name, None, _architecture(name))
    reason, what = architecture.torchvision_reason(), "image classifiers of torchvision"
    yield NameEntry("architectures", "torchvision:NAME", reason, f"{what}, random weights")
    for implementation in IMPLEMENTATIONS.values():
        reason = missing_package_reason(implementation.name)
        if implementation.needs_cuda and not has_cuda:
            reason = f"needs CUDA: {implementation.needs_cuda}"
        yield NameEntry("implementations", implementation.name, reason, implementation.description)
    for name, backend in BACKENDS.items():
        yield NameEntry("backends", name, unusable.get(name), backend.description)
    for dataset, description in DATASETS.items():
        reason = f"needs its files {MNIST_PLACE}" if dataset == MNIST else None
        yield NameEntry("datasets", dataset, reason, description)
    for name in SweepOptions.presets + TrainOptions.presets:
        purpose, _, _ = (PRESETS / f"{name}.toml").read_text(encoding="utf-8").partition("\n")
        yield NameEntry("presets", name, None, purpose.removeprefix("#").strip())
    for chart in CHARTS.values():
        yield NameEntry("charts", chart.name, None, chart.title)


def _architecture(name: str) -> str:
    """How large it is, what it counts, and its options."""
    loaded = architecture.load_architecture(name)
    with torch.device("meta"):  # without memory
        parameters = sum(parameter.numel() for parameter in loaded.build_model().parameters())
    options = ", ".join(map("=".join, architecture.architecture_options(name).items()))
    return (
        f"{parameters:,} parameters, {loaded.item}, on {loaded.default_dataset}; "
        f"options {options or 'none'}"
    )


def examine(wanted_gpus: int | None) -> Answer:
    """Examine this machine. The exit status is 1 if a backend fails that should work, or there are
    fewer usable GPUs than wanted."""
    machine = inspect_machine()
    tests = [self_test(name, machine) for name in BACKENDS]
    lacks_gpus = len(machine.gpus) < (wanted_gpus or 0)
    if lacks_gpus:
        usable = units.counted(len(machine.gpus), "usable GPU")
        say(f"--gpus {wanted_gpus}: this machine has {usable}")
    fails = any(test.status.is_failure for test in tests)
    answer = doctor_answer(machine.environment, tests)
    return replace(answer, exit_status=int(lacks_gpus or fails))
