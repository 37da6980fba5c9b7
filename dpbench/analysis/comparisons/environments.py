"""What differs between the environments of two sides, and whether that forbids a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from dpbench.analysis.comparisons.matching import Records, Side
from dpbench.architecture.user_files import named_files
from dpbench.errors import NotComparable
from dpbench.messages import option_words
from dpbench.records.environment import comparable_part


def compare_environments(
    baseline: Side,
    candidate: Side,
    pairs: Iterable[tuple[str, Records, Records]],
    *,
    force: bool = False,
) -> tuple[list[str], list[str]]:
    """Differences between the environments of the two sides that forbid a comparison, such as
    "cpu: A -> B", and notes on others, such as the commit and the host.

    Sides that mix the same environments do not differ. Raises NotComparable if there are
    differences, unless `force`.
    """
    sides = (baseline, candidate)
    # By the comparable part of their ids; None for those that are not stored.
    before, after = (
        {
            comparable_part(name): side.environments.get(name)
            for record in side.selected()
            for name in record.environment_ids
        }
        for side in sides
    )
    # torch's class of process group behind each backend, where ranks have a group.
    groups = [
        {
            record.trial.backend: rank.group_class
            for record in side.selected()
            for rank in record.ranks
            if rank.group_class
        }
        for side in sides
    ]
    differences: dict[str, None] = {}
    if before.keys() != after.keys():
        for first, second in product(before.values(), after.values()):
            if first is None or second is None:
                differences["not all of them are stored"] = None
            else:
                differences |= dict.fromkeys(second.differences_from(first))
        for backend in groups[0].keys() & groups[1].keys():
            then, now = (classes[backend] for classes in groups)
            if then != now:
                differences[f"process group {then} -> {now}"] = None
    if differences and not force:
        raise NotComparable(
            f"{baseline.label} and {candidate.label} come from different environments: "
            f"{'; '.join(differences)}. {option_words('force', True)} compares them "
            "nevertheless"
        )
    known = [[e for e in side.values() if e] for side in (before, after)]
    notes: dict[str, None] = {}
    for _, then_ran, now_ran in pairs:
        if then_ran and now_ran:
            old, new = then_ran[0].trial.workload, now_ran[0].trial.workload
            if old.files_sha256 != new.files_sha256 and named_files(new) == named_files(old):
                notes[f"{named_files(new)} has changed between the two"] = None
    # Another commit is the reason for most comparisons.
    for name, words in (("git_commit", "git commits"), ("hostname", "hosts")):
        old_names, new_names = (
            dict.fromkeys(getattr(environment, name) or "not known" for environment in side)
            for side in known
        )
        if old_names and new_names and old_names.keys() != new_names.keys():
            notes[f"{words} differ: {', '.join(old_names)} -> {', '.join(new_names)}"] = None
    return [*differences], [*notes]
