"""The options of a sweep over several nodes: how each is spelt and what its help says."""

from __future__ import annotations

from typing import Annotated

import typer

from dpbench.cli import completion

NODES = "Several nodes"

Nnodes = Annotated[
    str | None,
    typer.Option(
        "--nnodes",
        metavar="N",
        rich_help_panel=NODES,
        help="Number of nodes: the same command on each, but for --node-rank. --gpus is per node.",
    ),
]
NodeRank = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        rich_help_panel=NODES,
        help="This node's number from 0 on. Node 0 plans, records and reports; others follow.",
    ),
]
RdzvEndpoint = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", rich_help_panel=NODES, help="Where node 0 listens and others join."
    ),
]
RdzvId = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        rich_help_panel=NODES,
        help="Tells this sweep from another one at the same endpoint.",
        show_default="dpbench",
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=NODES,
        help="File with the token that all nodes share, readable by you alone.",
        show_default="DPBENCH_TOKEN; node 0 makes one and prints it",
    ),
]
LocalAddr = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        rich_help_panel=NODES,
        help="Address at which the other nodes reach this one.",
        show_default="the one from which the endpoint is reached",
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=NODES,
        help="Network interface of gloo and nccl on this node.",
        show_default="the one that has the address",
    ),
]
JoinTimeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        rich_help_panel=NODES,
        help="How long nodes wait for each other at the start.",
        show_default="5m",
    ),
]
LostAfter = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        rich_help_panel=NODES,
        help="Silence after which a node counts as lost.",
        show_default="10s",
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        metavar="pack|spread",
        autocompletion=completion.placements,
        rich_help_panel=NODES,
        help="Fill one node after the other, or take a replica of each in turn.",
        show_default="pack",
    ),
]
