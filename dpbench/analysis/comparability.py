"""Whether two sides were measured under conditions that allow a comparison."""

from __future__ import annotations

from dpbench.analysis.environments import SYNTHETIC_NOTE
from dpbench.analysis.matching import Matched, NotComparable
from dpbench.data.identity import change_words, named_files
from dpbench.environment import SYNTHETIC, Environment, comparable


def check_environments(matched: Matched, *, force: bool = False) -> tuple[str, ...]:
    """Notes on the environments of the two sides; () if all are alike.

    Raises NotComparable if they differ in a way that forbids a comparison, unless `force`.
    """
    notes = (*_synthetic(matched), *_files(matched), *_changed(matched), *_mixed(matched))
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
    """Differences between the environments of the pairs: "cpu: A -> B"; () if there are none.

    The commit and the host may differ. An environment that is not stored counts as equal.
    """
    first, second = _identifiers(matched)
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
    if any(there.launcher == SYNTHETIC for side in _environments(matched) for there in side):
        return [SYNTHETIC_NOTE]
    return []


def _files(matched: Matched) -> list[str]:
    """Changes in the content of the user's files, for pairs that name the same files."""
    found: dict[str, None] = {}
    for pair in matched.pairs:
        sides = (pair.baseline.values(), pair.candidate.values())
        before, now = (next((record.trial.workload for record in side), None) for side in sides)
        if before is None or now is None or before.files_sha256 == now.files_sha256:
            continue
        if named_files(now) == named_files(before):
            found[change_words(before, now, "between the two")] = None
    return [*found]


def _changed(matched: Matched) -> list[str]:
    """Differences that are allowed: another commit is the reason for most comparisons."""
    before, after = _environments(matched)
    notes = []
    for name, words in (("git_commit", "git commits"), ("hostname", "hosts")):
        first, second = (
            dict.fromkeys(getattr(environment, name) or "not known" for environment in side)
            for side in (before, after)
        )
        if first and second and first.keys() != second.keys():
            notes.append(f"{words} differ: {', '.join(first)} -> {', '.join(second)}")
    return notes


def _mixed(matched: Matched) -> list[str]:
    """Notes on two sides that mix the same environments, possibly in other proportions."""
    first, second = _identifiers(matched)
    if len(first) < 2 or first.keys() != second.keys():
        return []
    return [
        f"both sides mix {len(first)} environments ({', '.join(first)}): a difference may be theirs"
    ]


def _environments(matched: Matched) -> tuple[list[Environment], list[Environment]]:
    """The stored environments of the pairs, for each side."""
    first, second = (
        [side.environments[i] for i in identifiers.values() if i in side.environments]
        for side, identifiers in zip(
            (matched.baseline, matched.candidate), _identifiers(matched), strict=True
        )
    )
    return first, second


def _identifiers(matched: Matched) -> tuple[dict[str, str], dict[str, str]]:
    """The comparable part of every environment's id, with one full id that has it."""
    first, second = (
        {
            comparable(name): name
            for records in side
            for record in records.values()
            for name in record.environment_ids
        }
        for side in (
            [pair.baseline for pair in matched.pairs],
            [pair.candidate for pair in matched.pairs],
        )
    )
    return first, second


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
