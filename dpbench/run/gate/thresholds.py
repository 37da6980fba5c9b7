"""What `dpbench check` holds a sweep to: the command line before pyproject.toml before defaults."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbench import units
from dpbench.errors import UnknownName, UsageError
from dpbench.run.shared_options import REPETITIONS
from dpbench.values import duration_seconds, known_name, percentage

PROJECT_FILE = "pyproject.toml"
SECTION = "[tool.dpbench.check]"
DEFAULTS: Mapping[str, Any] = {
    "tolerance": "3%",
    "metric": ["images_per_second"],
    "strict": False,
    "repetitions": 5,
    "budget": "5m",
}
EXAMPLES = {
    "tolerance": 'tolerance = "3%"',
    "metric": 'metric = ["images_per_second", "peak_memory_bytes=10%"]',
    "strict": "strict = true",
    "repetitions": "repetitions = 5",
    "budget": 'budget = "5m"',
}
FEWEST_REPETITIONS = 2
"""One value per side has no spread between runs, and so no verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Compared metrics, their tolerances, and the limit on repetitions."""

    tolerances: dict[str, float]
    """Per metric, how much worse it may be: 0.03 for 3 %."""
    own: frozenset[str]
    """The metrics that were given together with a tolerance, as efficiency=2%."""
    strict: bool
    repetitions: int
    budget_seconds: float
    sources: dict[str, str]
    """The source of each of `DEFAULTS`."""

    def describe(self) -> str:
        """The tolerances and where they come from, for whoever reads the log of a failed check."""
        by_origin: dict[str, list[str]] = {}
        for metric, share in self.tolerances.items():
            origin = self.sources["metric" if metric in self.own else "tolerance"]
            by_origin.setdefault(origin, []).append(f"{metric} {100 * share:.3g} %")
        held = ", ".join(f"{', '.join(texts)} ({origin})" for origin, texts in by_origin.items())
        strict = "strict" if self.strict else "not strict"
        return f"tolerance: {held}; {strict} ({self.sources['strict']})"

    def describe_effort(self) -> str:
        """How much is measured, likewise."""
        return (
            f"{self.repetitions} repetitions ({self.sources['repetitions']}), more while "
            f"inconclusive within {units.seconds(self.budget_seconds)} ({self.sources['budget']})"
        )


def resolve(
    typed: Mapping[str, Any], known_metrics: Collection[str], folder: Path | None = None
) -> Thresholds:
    """The effective thresholds; `typed` has a value or None for every key of `DEFAULTS`.

    A tolerance on the command line also replaces those that the file gives single metrics.
    Raises UsageError for a value that cannot be used, UnknownName for an unknown key or metric.
    """
    path = (folder or Path.cwd()) / PROJECT_FILE
    from_file = read_section(path)
    values = {**DEFAULTS, **from_file}
    sources = dict.fromkeys(DEFAULTS, "default") | dict.fromkeys(from_file, PROJECT_FILE)
    given = {key: typed[key] for key in DEFAULTS if typed[key] not in (None, [])}
    if "tolerance" in given and "metric" not in given:
        values["metric"] = [entry.partition("=")[0] for entry in values["metric"]]
    values.update(given)
    sources.update(dict.fromkeys(given, "command line"))
    name = {key: _spelling(key, sources[key]) for key in DEFAULTS}
    repetitions = REPETITIONS.parse(name["repetitions"], str(values["repetitions"]))
    if repetitions < FEWEST_REPETITIONS:
        raise UsageError(
            f"{name['repetitions']}: {repetitions} has no spread to judge by; expected at least "
            f"{FEWEST_REPETITIONS}, better 5"
        )
    entries = [part.partition("=") for text in values["metric"] for part in text.split(",")]
    return Thresholds(
        tolerances=_tolerances(name, entries, values["tolerance"], known_metrics),
        own=frozenset(metric.strip() for metric, has_own, _ in entries if has_own),
        strict=values["strict"],
        repetitions=repetitions,
        budget_seconds=duration_seconds(name["budget"], str(values["budget"])),
        sources=sources,
    )


def read_section(path: Path) -> dict[str, Any]:
    """The keys of [tool.dpbench.check]; none where there is no file or no section."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of which TOMLDecodeError is one
        raise UsageError(f"{path} is not TOML: {error}; correct it") from None
    section = _section(content, path)
    for key, value in section.items():
        if key not in DEFAULTS:
            raise UnknownName(f"key in {SECTION} of {path}:", key, DEFAULTS)
        _check_kind(f"{path}, {SECTION} {key}", key, value)
    return section


def _section(content: dict[str, Any], path: Path) -> dict[str, Any]:
    for where in ("tool", "tool.dpbench", "tool.dpbench.check"):
        content = content.get(where.rpartition(".")[2], {})
        if not isinstance(content, dict):
            raise UsageError(f"{path}: {where} is {content!r}; expected a table, as in {SECTION}")
        if where == "tool.dpbench" and (unknown := [key for key in content if key != "check"]):
            raise UnknownName(f"key in [tool.dpbench] of {path}:", unknown[0], ["check"])
    return content


def _check_kind(where: str, key: str, value: Any) -> None:
    right = {
        "tolerance": isinstance(value, str),
        "metric": isinstance(value, list) and all(isinstance(entry, str) for entry in value),
        "strict": isinstance(value, bool),
        "repetitions": type(value) is int,
        "budget": isinstance(value, str),
    }
    if not right[key] or value == []:
        raise UsageError(f"{where}: got {value!r}; expected e.g. {EXAMPLES[key]}")


def _spelling(key: str, source: str) -> str:
    """How errors name the value: as it was written there."""
    return f"{PROJECT_FILE}, {SECTION} {key}" if source == PROJECT_FILE else f"--{key}"


def _tolerances(
    name: Mapping[str, str],
    entries: Sequence[tuple[str, str, str]],
    tolerance: str,
    known: Collection[str],
) -> dict[str, float]:
    default = percentage(name["tolerance"], tolerance)
    held: dict[str, float] = {}
    for token, has_own, own in entries:
        metric = known_name(name["metric"], token, known)
        if metric in held:
            raise UsageError(f"{name['metric']}: {metric} is listed twice; give it one tolerance")
        held[metric] = percentage(f"{name['metric']} {metric}", own) if has_own else default
    return held
