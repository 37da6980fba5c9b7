"""dpbench buckets: which bucket size suits a model on so many replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dpbench.cli import network as networks
from dpbench.cli import project_grammar as grammar
from dpbench.cli.projecting import Loaded, Request, load_series
from dpbench.errors import UsageError

if TYPE_CHECKING:
    from dpbench.analysis.projection.bucket_advice import BucketAdvice

SIZES = (64,)
"""Group sizes on a network that is given."""


def buckets(
    folder: grammar.Folder,
    comm: networks.Comm = None,
    topology: networks.TopologyName = None,
    nccl_log: networks.NcclLog = None,
    group_sizes: grammar.GroupSizesOfBuckets = None,
    implementations: grammar.Implementations = None,
    backends: grammar.Backends = None,
    batch_sizes: grammar.BatchSizes = None,
    json: grammar.AsJson = False,
) -> None:
    """Simulate the step for bucket sizes from 1 MiB to one bucket, and recommend one.

    dpbench buckets results/real --implementation ddp --group-size 2

    It takes a sweep with group size 1 in it, where gradients are traced, and collectives.
    """
    loaded = load_series(
        Request(
            folder=folder,
            comm=comm,
            topology=topology,
            nccl_log=nccl_log,
            implementations=implementations,
            backends=backends,
            batch_sizes=batch_sizes,
            group_sizes=group_sizes,
        )
    )
    if loaded.group_sizes is not None and 1 in loaded.group_sizes:
        raise UsageError("--group-sizes: 1 replica sends no buckets; expected 2 or more")
    from dpbench.report.buckets import answer

    advice, refusals = _advise(loaded)
    if not advice:
        raise UsageError(f"{folder}: {refusals[0]}")
    notes = (*refusals, *loaded.notes)
    found = answer(advice, notes=notes, premise=loaded.premise)
    typer.echo(found.shown(as_json=json), nl=False)


def _advise(loaded: Loaded) -> tuple[list[BucketAdvice], list[str]]:
    """On each series at each group size, and why some cannot be simulated."""
    from dpbench.analysis.projection.bucket_advice import advise_buckets

    advice, refusals = [], []
    for one in loaded.series:
        for size in sorted(set(loaded.sizes(SIZES, one.measured_sizes[1:]))):
            try:
                advice.append(advise_buckets(one, size))
            except UsageError as error:
                refusals.append(f"{one.label}, {size:,} replicas: {error}")
    return advice, refusals
