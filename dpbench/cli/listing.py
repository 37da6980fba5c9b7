"""`dpbench list`: what can be measured, and whether it can be used here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.errors import UnknownName
from dpbench.messages import print_result

if TYPE_CHECKING:
    from dpbench.report.answers.listing import NameEntry

KINDS = ("architectures", "implementations", "backends", "datasets", "presets", "charts")


def listing(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            show_default="all",
            help="Kind to list with descriptions, e.g. implementations.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON.")] = False,
) -> None:
    """List models, implementations, backends and datasets.

    dpbench list architectures
    """
    if kind is not None and kind not in KINDS:
        raise UnknownName("KIND", kind, KINDS)
    from dpbench.report.answers.listing import names_answer

    entries = [entry for entry in _names() if kind in (None, entry.kind)]
    print_result(names_answer(entries).render(as_json=as_json))


def _names() -> Iterator[NameEntry]:
    """All names, kind by kind."""
    import torch

    from dpbench import architecture
    from dpbench.data.registry import DATASETS, MNIST, MNIST_PLACE
    from dpbench.launch.machine import missing_package_reason
    from dpbench.rendezvous.backends import missing_backends
    from dpbench.report.answers.listing import NameEntry
    from dpbench.report.charts.kinds import CHARTS
    from dpbench.run import presets
    from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS

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
    files = presets.SWEEPS | presets.TRAININGS
    for name, path in files.items():
        yield NameEntry("presets", name, None, presets.purpose(path))
    for chart in CHARTS.values():
        yield NameEntry("charts", chart.name, None, chart.title)


def _architecture(name: str) -> str:
    """How large it is, what it counts, and its options."""
    import torch

    from dpbench import architecture

    loaded = architecture.load_architecture(name)
    with torch.device("meta"):  # without memory
        parameters = sum(parameter.numel() for parameter in loaded.build_model().parameters())
    options = ", ".join(map("=".join, architecture.architecture_options(name).items()))
    return (
        f"{parameters:,} parameters, {loaded.item}, on {loaded.default_dataset}; "
        f"options {options or 'none'}"
    )
