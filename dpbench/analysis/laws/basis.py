"""The terms of a step time, each with its mechanism.

A term is chosen for its mechanism, never because it fits: with 3 to 8 points everything fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpbench.analysis.estimate import Floats
from dpbench.errors import UnknownName, UsageError
from dpbench.specs.traits import IMPLEMENTATIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One term: a coefficient in seconds times a function of the group size."""

    name: str
    formula: str
    mechanism: str
    value: Callable[[Floats], Floats]


TERMS = {
    term.name: term
    for term in (
        Term(
            name="const",
            formula="1",
            mechanism="computing, the same at every group size",
            value=np.ones_like,
        ),
        Term(
            name="wrap",
            formula="1 from n = 2 on",
            mechanism="synchronizing at all: hooks, bucket copies, cores lost to collectives",
            value=lambda n: (n >= 2).astype(float),
        ),
        Term(
            name="ring",
            formula="(n-1)/n",
            mechanism="bytes through the slowest link: all-reduce bandwidth, saturates",
            value=lambda n: (n - 1) / n,
        ),
        Term(
            name="log",
            formula="log2 n",
            mechanism="latency of trees, and waiting for the slowest replica",
            value=np.log2,
        ),
        Term(
            name="lin",
            formula="n-1",
            mechanism="one after the other: ring latency, or one process that serves all replicas",
            value=lambda n: n - 1,
        ),
    )
}
"""The terms that depend only on the group size, which --basis may name."""
NODE_TERMS = ("node-ring", "node-log")

DEFAULT = ("const", "ring", "log")
"""Default terms; the error of a law was calibrated with them in weak scaling."""
SATURATED = "saturated"
"""Extra term for two group sizes; see `saturated`."""
ONE_PROCESS = ("const", "lin")


def default_basis(implementation: str | None) -> tuple[str, ...]:
    """The terms of an implementation's step time; None is a published series.

    Raises UsageError for copies that exchange nothing: no collective explains how they slow each
    other down, so the user has to name the terms.

    A single process that scatters, replicates and gathers for all replicas does so one after the
    other: torch's DataParallel and similar implementations have `lin`, which all-reduce among
    processes does not.
    """
    family = (implementation or "").partition("(")[0]  # as in "local-sgd(4)"
    traits = IMPLEMENTATIONS.get(family)
    if traits is None:
        return DEFAULT
    if not traits.communicates:
        raise UsageError(
            f"{family} exchanges nothing, so no term of an all-reduce fits it; name terms, e.g. "
            "--basis const,lin"
        )
    return ONE_PROCESS if traits.one_process else DEFAULT


def saturated(largest: int) -> Term:
    """The overhead of a ring up to the largest measured group size, constant beyond.

    It keeps the last efficiency; for 1 and 2 replicas it is the term `wrap`.
    """
    return Term(
        name=SATURATED,
        formula=f"(n-1)/n, from {largest} on {largest - 1}/{largest}",
        mechanism=f"what {largest} replicas cost, and more of them no more: efficiency stays",
        value=lambda n: (np.minimum(n, largest) - 1) / np.minimum(n, largest),
    )


def parse_basis(text: str) -> tuple[str, ...]:
    """Names from "const,ring,log"; raises UnknownName, or UsageError for repeated or empty ones."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name:
            raise UsageError(f"--basis: {text!r} has an empty entry; write e.g. const,ring,log")
        if name not in TERMS:
            raise UnknownName("term for --basis:", name, TERMS)
        if names.count(name) > 1:
            raise UsageError(f"--basis: {name} is listed twice; a term counts once")
    return tuple(names)


def terms(
    names: Sequence[str], group_sizes: Sequence[int], replicas_per_node: int | None
) -> tuple[Term, ...]:
    """The named terms; and those of the nodes if two measured sizes or more take several nodes."""
    chosen = [TERMS[name] for name in names]
    if replicas_per_node is not None and sum(n > replicas_per_node for n in group_sizes) >= 2:
        chosen += _node_terms(replicas_per_node)
    return tuple(chosen)


def _node_terms(replicas_per_node: int) -> tuple[Term, Term]:
    def ring(n: Floats) -> Floats:
        nodes = np.ceil(n / replicas_per_node)
        return (nodes - 1) / nodes

    def tree(n: Floats) -> Floats:
        return np.asarray(np.log2(np.ceil(n / replicas_per_node)))

    return (
        Term(
            name=NODE_TERMS[0],
            formula="(m-1)/m, m nodes",
            mechanism="bytes between nodes: the bandwidth of the network, saturates",
            value=ring,
        ),
        Term(
            name=NODE_TERMS[1],
            formula="log2 m, m nodes",
            mechanism="latency of trees between nodes",
            value=tree,
        ),
    )
