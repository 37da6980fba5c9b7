"""Whether two sides were measured under conditions that allow a comparison."""

from __future__ import annotations

from collections.abc import Iterable

from dpbench.analysis.matching import Matched, NotComparable
from dpbench.environment import SYNTHETIC, comparable
from dpbench.records import TrialRecord


def check_environments(matched: Matched, *, force: bool = False) -> tuple[str, ...]:
    """What has to be said of the environments of the two sides; () if all are alike.

    Raises NotComparable if they differ in a way that forbids a comparison, unless `force`.
    """
    notes = (*_synthetic(matched), *_mixed(matched))
    differences = environment_differences(matched)
    if not differences:
        return notes
    found = (
        f"{matched.baseline.label} and {matched.candidate.label} come from different environments: "
        f"{'; '.join(differences)}"
    )
    if not force:
        raise NotComparable(f"{found}. --force compares them nevertheless")
    return (*notes, found)


def environment_differences(matched: Matched) -> tuple[str, ...]:
    """Lists what differs between the environments of the pairs: "cpu: A -> B"; () if nothing.

    The commit and the host may differ. An environment that is not stored may be any.
    """
    first, second = _sides(matched)
    if not first or not second or first.keys() == second.keys():
        return ()
    return tuple(
        dict.fromkeys(
            difference
            for one, baseline_id in first.items()
            for other, candidate_id in second.items()
            if one != other
            for difference in _differences(matched, baseline_id, candidate_id)
        )
    )


def _synthetic(matched: Matched) -> list[str]:
    environments = (
        *matched.baseline.environments.values(),
        *matched.candidate.environments.values(),
    )
    if any(environment.launcher == SYNTHETIC for environment in environments):
        return ["synthetic numbers from a cost model: nothing was run"]
    return []


def _mixed(matched: Matched) -> list[str]:
    """Of sides that are alike in being mixtures, which may be mixed in other proportions."""
    first, second = _sides(matched)
    if len(first) < 2 or first.keys() != second.keys():
        return []
    return [
        f"both sides mix {len(first)} environments ({', '.join(first)}): a difference may be theirs"
    ]


def _sides(matched: Matched) -> tuple[dict[str, str], dict[str, str]]:
    return (
        _environments(record for pair in matched.pairs for record in pair.baseline.values()),
        _environments(record for pair in matched.pairs for record in pair.candidate.values()),
    )


def _environments(records: Iterable[TrialRecord]) -> dict[str, str]:
    """The comparable part of every environment's id, with one whole id that has it."""
    return {comparable(record.environment_id): record.environment_id for record in records}


def _differences(matched: Matched, baseline_id: str, candidate_id: str) -> list[str]:
    missing = [
        f"environment {identifier} of {side.label} is not stored"
        for side, identifier in (
            (matched.baseline, baseline_id),
            (matched.candidate, candidate_id),
        )
        if identifier not in side.environments
    ]
    if missing:
        return missing
    candidate = matched.candidate.environments[candidate_id]
    return candidate.differences_from(matched.baseline.environments[baseline_id])
