"""dpbench what-if: what a faster network, smaller gradients or other steps would bring."""

from __future__ import annotations

import typer

from dpbench.cli import network as networks
from dpbench.cli import project_grammar as grammar
from dpbench.cli.messages import say
from dpbench.cli.projecting import Request, load_series, refuse_all

SIZES = (64,)


def what_if(
    folder: grammar.Folder,
    change: grammar.Change = None,
    comm: networks.Comm = None,
    topology: networks.TopologyName = None,
    nccl_log: networks.NcclLog = None,
    group_sizes: grammar.GroupSizesToChange = None,
    bucket_cap_mb: grammar.BucketCap = None,
    implementations: grammar.Implementations = None,
    backends: grammar.Backends = None,
    batch_sizes: grammar.BatchSizes = None,
    json: grammar.AsJson = False,
) -> None:
    """Simulate changes of the network, the gradients and the steps, each alone.

    dpbench what-if results/real --topology tcp-25gbe --change bandwidth=2 --change gradients=bf16
    """
    from dpbench.analysis.projection.what_if import DEFAULTS, Change, parse_change

    changes: dict[str, Change] = {}
    for text in change or DEFAULTS:
        one = parse_change(text)
        if changes.setdefault(one.words, one) is not one:
            say(f"--change: {text} is listed twice; it counts once")
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
        )
    )
    from dpbench.analysis.projection.assumptions import assumptions
    from dpbench.analysis.projection.what_if import what_if as changed
    from dpbench.report.what_if import Answers, answer

    sizes = loaded.sizes(SIZES)
    answers = [
        Answers(
            label=one.label,
            network=one.network.name,
            item=one.item,
            found=changed(one, sizes, [*changes.values()]),
            assumptions=assumptions(one, max(sizes), loaded.machine),
        )
        for one in loaded.series
    ]
    refuse_all([row for one in answers for row in one.found])
    found = answer(answers, premise=loaded.premise, notes=loaded.notes)
    typer.echo(found.shown(as_json=json), nl=False)
