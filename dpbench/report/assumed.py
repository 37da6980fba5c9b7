"""What simulated series take for granted, each sentence once: under all whom it concerns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from dpbench.report.notes import WIDTH, bullet


def assumed(series: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """A paragraph for each set of series that share sentences, the largest set first.

    `series` are labels, as "ddp/gloo, batch 32", with their sentences; series of one label count
    as one.
    """
    everyone = tuple(dict.fromkeys(label for label, _ in series))
    concerned: dict[str, dict[str, None]] = {}
    for label, lines in series:
        for line in lines:
            concerned.setdefault(line, {})[label] = None
    shared: dict[tuple[str, ...], list[str]] = {}
    for line, labels in concerned.items():
        shared.setdefault(tuple(labels), []).append(line)
    ordered = sorted(shared.items(), key=lambda pair: -len(pair[0]))
    return [
        "\n".join([_heading(labels, everyone), *map(bullet, lines)]) for labels, lines in ordered
    ]


def _heading(labels: Sequence[str], everyone: Sequence[str]) -> str:
    if len(labels) == len(everyone):
        return "Assumed"
    names = dict.fromkeys(_name(label) for label in labels)
    every = [label for label in everyone if _name(label) in names]
    listed = "; ".join(labels if len(labels) < len(every) else names)
    return textwrap.fill(f"Assumed of {listed}", WIDTH, break_on_hyphens=False)


def _name(label: str) -> str:
    """Of "ddp/gloo, batch 32" and "ddp/gloo ×2, batch 32", ddp/gloo."""
    return label.partition(", batch ")[0].partition(" ×")[0]
