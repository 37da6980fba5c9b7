"""dpbench iso: the smallest batch that keeps an efficiency."""

from __future__ import annotations

import typer

from dpbench.cli import network as networks
from dpbench.cli import project_grammar as grammar
from dpbench.cli.projecting import Request, load_series, refuse_all
from dpbench.values import percentage

SIZES = (8, 64, 1000)


def iso(
    folder: grammar.Folder,
    efficiency: grammar.Efficiency = "90%",
    comm: networks.Comm = None,
    topology: networks.TopologyName = None,
    nccl_log: networks.NcclLog = None,
    group_sizes: grammar.GroupSizesOfIso = None,
    bucket_cap_mb: grammar.BucketCap = None,
    implementations: grammar.Implementations = None,
    backends: grammar.Backends = None,
    json: grammar.AsJson = False,
) -> None:
    """Find the smallest batch per replica that keeps an efficiency.

    dpbench iso results/real --efficiency 90% --topology tcp-25gbe

    It takes traces at two batch sizes or more, from a sweep with group size 1 in it.
    """
    wanted = percentage("--efficiency", efficiency, examples="90% or 99.5%")
    loaded = load_series(
        Request(
            folder=folder,
            comm=comm,
            topology=topology,
            nccl_log=nccl_log,
            implementations=implementations,
            backends=backends,
            batch_sizes=None,
            group_sizes=group_sizes,
            bucket_cap_mb=bucket_cap_mb,
        )
    )
    from dpbench.analysis.projection.assumptions import assumptions
    from dpbench.analysis.projection.iso import families, iso_batches
    from dpbench.report.iso import IsoAnswer, answer

    sizes = loaded.sizes(SIZES)
    answers = [
        IsoAnswer(
            label=family.label,
            network=family.members[-1].network.name,
            traced=family.batch_sizes,
            sample_size=min(len(one.inputs.traces) for one in family.members),
            rows=iso_batches(family, sizes, wanted),
            assumptions=tuple(
                (one.label, assumptions(one, max(sizes), loaded.machine)) for one in family.members
            ),
        )
        for family in families(loaded.series)
    ]
    refuse_all([row for one in answers for row in one.rows])
    found = answer(answers, wanted, premise=loaded.premise, notes=loaded.notes)
    typer.echo(found.shown(as_json=json), nl=False)
