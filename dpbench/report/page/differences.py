"""What differs between subjects that stand beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpbench.analysis.subject import Subject
from dpbench.printable import one_line
from dpbench.report.page.environment import SOURCE, facts_of
from dpbench.report.table import MISSING, Table, TableRow, text_column, words

WORK = ("Workload", "CPU", "GPUs")
"""Without which nobody knows whether two speeds are of the same work."""


def differences(subjects: Sequence[Subject]) -> Table | None:
    """Of what was trained and on what, all that is not the same wherever it is known; beside
    published numbers, what they do not tell of equal work."""
    known = [dict(facts_of(subject)) for subject in subjects]
    names = dict.fromkeys(name for facts in known for name in facts)
    values = {name: {facts[name] for facts in known if name in facts} for name in names}
    published = any(not (subject.sweep or subject.collectives) for subject in subjects)
    untold = WORK if published else ()
    different = [
        name for name in names if name != SOURCE and (len(values[name]) > 1 or name in untold)
    ]
    if not different:
        return None
    return Table(
        key="differences",
        caption="What differs between them",
        columns=(
            text_column("What"),
            *(text_column(one_line(s.name), key=f"of-{k}") for k, s in enumerate(subjects)),
        ),
        rows=tuple(
            TableRow(cells=(words(name), *(words(_value(facts, name)) for facts in known)))
            for name in different
        ),
    )


def _value(facts: Mapping[str, str], name: str) -> str:
    return facts.get(name, "not recorded" if SOURCE in facts else MISSING)
