"""dpbench project: what thousands of replicas would give."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import typer

from dpbench.cli import network as networks
from dpbench.cli import project_grammar as grammar
from dpbench.cli.charts import draw_beside, source_of
from dpbench.cli.projecting import Loaded, Request, load_series, refuse_all
from dpbench.values import bounded_float

if TYPE_CHECKING:
    from dpbench.analysis.projection.economics import Economics
    from dpbench.analysis.projection.series import Series
    from dpbench.report.projection import Projection

FURTHER = (8, 64, 1000, 10_000)
"""Group sizes besides the measured ones, unless others are asked for."""
SMALLEST = 1e-6
"""Of a price, a power, a loss or a noise scale."""


def project(
    folder: grammar.Folder,
    comm: networks.Comm = None,
    topology: networks.TopologyName = None,
    nccl_log: networks.NcclLog = None,
    group_sizes: grammar.GroupSizesToProject = None,
    bucket_cap_mb: grammar.BucketCap = None,
    price_per_gpu_hour: grammar.Price = None,
    watts_per_gpu: grammar.Watts = None,
    target_loss: grammar.TargetLoss = None,
    noise_scale_samples: grammar.NoiseScale = None,
    implementations: grammar.Implementations = None,
    backends: grammar.Backends = None,
    batch_sizes: grammar.BatchSizes = None,
    json: grammar.AsJson = False,
    charts: grammar.Charts = True,
) -> None:
    """Project the step, the speed and the cost to any number of replicas.

    dpbench project results/real --topology h100-nvswitch-ndr --price-per-gpu-hour 2.5

    It takes a sweep with group size 1 in it, where gradients are traced, and collectives.
    """
    price = _number("--price-per-gpu-hour", price_per_gpu_hour, most=1e6)
    watts = _number("--watts-per-gpu", watts_per_gpu, most=1e5)
    noise_scale = _number("--noise-scale-samples", noise_scale_samples, most=1e12)
    loss = _number("--target-loss", target_loss, most=1e6)
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
            bucket_cap_mb=bucket_cap_mb,
            target_loss=loss,
        )
    )
    from dpbench.report.projection import answer

    found = projections_of(
        loaded, price=price, watts=watts, noise_scale=noise_scale, target_loss=loss
    )
    text = answer(found, premise=loaded.premise, notes=loaded.notes).shown(as_json=json)
    typer.echo(text, nl=False)
    if charts:
        from dpbench.report.charts.projection import file_name, projection

        chart = {file_name(loaded.network.given_name): partial(projection, found)}
        draw_beside(loaded.sweep.folder, chart, source_of(loaded.sweep))


def projections_of(
    loaded: Loaded,
    *,
    price: float | None = None,
    watts: float | None = None,
    noise_scale: float | None = None,
    target_loss: float | None = None,
) -> list[Projection]:
    """One for each series; raises UsageError if there is no number in any."""
    from dpbench.analysis.projection.economics import economics

    costs = partial(
        economics,
        price_per_replica_hour=price,
        watts=watts,
        noise_scale=noise_scale,
        target_loss=target_loss,
    )
    found = [_projection(loaded, one, costs(one)) for one in loaded.series]
    refuse_all([row for one in found for row in one.rows])
    return found


def _number(option: str, text: str | None, *, most: float) -> float | None:
    return None if text is None else bounded_float(option, text, least=SMALLEST, most=most)


def _projection(loaded: Loaded, series: Series, known: Economics) -> Projection:
    from dpbench.analysis.projection.assumptions import assumptions
    from dpbench.analysis.projection.project import project as projected
    from dpbench.report.projection import Projection

    sizes = loaded.group_sizes or (*series.measured_sizes, *FURTHER)
    return Projection(
        label=series.label,
        implementation=series.trial.implementation_label,
        backend=series.trial.backend,
        batch_size=series.trial.batch_size,
        item=series.item,
        network=series.network.name,
        rows=projected(series, sizes, known),
        assumptions=assumptions(series, max(sizes), loaded.machine),
        notes=(*_noise_scale(known, series.item), *known.notes),
    )


def _noise_scale(known: Economics, item: str) -> Iterable[str]:
    from dpbench.report.numbers import ranged

    if known.noise_scale is not None:
        yield f"phi, the gradient noise scale: {ranged(known.noise_scale)} {item}"
