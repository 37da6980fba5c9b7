"""What `dpbench list` answers: what there is to measure with, and whether it can be used here."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dpbench import architecture
from dpbench.data.registry import DATASETS, MNIST, MNIST_PLACE
from dpbench.launch.machine import missing_package_reason
from dpbench.options.reading import PRESETS
from dpbench.options.setup import ListOptions
from dpbench.options.sweep import SweepOptions
from dpbench.options.train import TrainOptions
from dpbench.rendezvous.backends import missing_backends
from dpbench.report.answer import Answer
from dpbench.report.answers.setup import NameEntry, names_answer
from dpbench.report.charts.kinds import CHARTS
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS


def listing(options: ListOptions) -> Answer:
    """The names of a kind, or of all, and whether they can be used here."""
    return names_answer([entry for entry in _names() if options.kind in (None, entry.kind)])


def _names() -> Iterator[NameEntry]:
    """All names, kind by kind."""
    has_cuda = torch.cuda.device_count() > 0
    unusable = missing_backends()
    for name in architecture.shipped_architectures():
        yield NameEntry("architectures", name, None, _architecture(name))
    reason = architecture.torchvision_reason()
    what = "image classifiers of torchvision, random weights"
    yield NameEntry("architectures", "torchvision:NAME", reason, what)
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
