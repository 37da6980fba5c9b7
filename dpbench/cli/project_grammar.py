"""The options of `project`, `iso`, `what-if` and `buckets`: spelling and help."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dpbench.cli.row_filter import only

COSTS = "What it costs"


_only = partial(only, panel="Which series")


def _group_sizes(default: str) -> Any:
    return typer.Option(
        "--group-sizes",
        "--group-size",
        metavar="N,N",
        help="Numbers of replicas.",
        show_default=default,
    )


def _cost(metavar: str, text: str, default: str | None = None) -> Any:
    shown: Any = {} if default is None else {"show_default": default}
    return typer.Option(metavar=metavar, rich_help_panel=COSTS, help=text, **shown)


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A results folder of a sweep.")]
Implementations = Annotated[str | None, _only("implementations", "implementation", "A,B")]
Backends = Annotated[str | None, _only("backends", "backend", "A,B")]
BatchSizes = Annotated[str | None, _only("batch sizes", "batch-size", "N,N")]
BucketCap = Annotated[
    str | None,
    typer.Option(
        metavar="MIB",
        help="Buckets of up to so many MiB, the first one too.",
        show_default="as in the sweep",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One object for programs instead of tables.")]
Charts = Annotated[
    bool, typer.Option("--charts/--no-charts", help="Draw the projection (PNG and SVG).")
]

GroupSizesToProject = Annotated[str | None, _group_sizes("the measured ones, 8, 64, 1000, 10000")]
GroupSizesOfIso = Annotated[
    str | None, _group_sizes("the largest measured; 8, 64, 1000 on a network that is given")
]
GroupSizesToChange = Annotated[
    str | None, _group_sizes("the largest measured; 64 on a network that is given")
]
GroupSizesOfBuckets = Annotated[
    str | None, _group_sizes("the measured ones; 64 on a network that is given")
]

Price = Annotated[str | None, _cost("X", "Of one replica, in any currency.")]
Watts = Annotated[
    str | None, _cost("X", "Of one replica.", "what its GPU drew, if that was measured")
]
TargetLoss = Annotated[
    str | None,
    _cost("X", "Project the time to this loss, which some group of the sweep must have reached."),
]
NoiseScale = Annotated[
    str | None,
    _cost(
        "X",
        "The gradient noise scale, in samples: larger batches save ever fewer steps.",
        "as measured with sweep --noise-scale",
    ),
]
Efficiency = Annotated[
    str, typer.Option(metavar="P%", help="The share of linear scaling that is to be kept.")
]
Change = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="bandwidth=2, latency=0.5, gradients=bf16, accumulate=4, bucket-cap-mb=50, "
        "stragglers=none, overlap=perfect|none; may be repeated. Each alone is compared with the "
        "step as it is.",
        show_default="a list of common ones",
    ),
]
