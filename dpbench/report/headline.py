"""The headline in a sentence: the fastest configuration, and how well it scales."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from dpbench.analysis.fastest import Fastest
from dpbench.messages import one_line
from dpbench.report.formatting import percentage, plus_minus, quantity


def headline_sentences(fastest: Mapping[str, Fastest]) -> Iterator[str]:
    """One sentence for each work."""
    for work, found in fastest.items():
        sentence = _sentence(found)
        if found.faster_backend:
            first, ratio, second = found.faster_backend
            sentence += f"; {first} is {plus_minus(ratio)} × as fast as {second}"
        elif found.row and found.lead:
            ratio, other = found.lead
            row = one_line(found.row.label)
            sentence += f"; repetition by repetition, {row} is {plus_minus(ratio)} × as fast as "
            sentence += one_line(other.label)
        prefix = f"{one_line(work)}: " if work else ""
        yield f"{prefix}{sentence if work else sentence[:1].upper() + sentence[1:]}."


def _sentence(found: Fastest) -> str:
    row, speed, rivals = found.row, found.speed, found.rivals
    if row is None or speed is None or found.reason:
        return f"no fastest configuration: {found.reason}"
    label, value = one_line(row.label), quantity(speed, "rate" if row.throughput else "time")
    if found.doubt:
        return f"perhaps the fastest: {label} at {value}, but {found.doubt}"
    if rivals:
        count = len(rivals)
        others = one_line(rivals[0].label) if count == 1 else f"{count:,} others"
        if all(rival.throughput and rival.throughput.is_too_noisy for rival in rivals):
            noisy = f"{'is' if count == 1 else 'are'} too noisy to compare with it"
            return f"no clear winner: {label} at {value}, but {others} {noisy}"
        speeds = [each.value for rival in rivals if (each := rival.throughput or rival.duration)]
        apart = math.ceil(100 * max(abs(1 - each / speed.value) for each in speeds))
        return f"no clear winner: {label}, {value}, and {others} tie within {max(1, apart)} %"
    if found.others and speed.basis != "repetitions":
        one_run = "one run cannot show whether another is as fast"
        return f"fastest in a single run: {label} at {value}; {one_run}"
    efficiency = row.efficiency if row.group_size > 1 else None
    if efficiency is None or efficiency.is_too_noisy:
        return f"fastest: {label} at {value}"
    scaling = f"{percentage(efficiency)} of linear scaling from {row.speedup_reference}"
    return f"fastest: {label} at {value}, {scaling}"
