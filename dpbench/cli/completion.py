"""What a shell offers behind an option: names that dpbench knows, lists one name at a time.

Everything is imported when a shell asks, since `dpbench --help` has no time for it.
"""

from __future__ import annotations

from collections.abc import Iterable


def implementations(incomplete: str) -> list[str]:
    from dpbench.traits import IMPLEMENTATIONS

    return listed(incomplete, IMPLEMENTATIONS)


def backends(incomplete: str) -> list[str]:
    from dpbench.traits import PROCESS_GROUP_BACKENDS

    return listed(incomplete, PROCESS_GROUP_BACKENDS)


def architectures(incomplete: str) -> list[str]:
    from dpbench import architecture

    return one(incomplete, architecture.names())


def datasets(incomplete: str) -> list[str]:
    from dpbench.data.registry import DATASETS

    return one(incomplete, DATASETS)


def optimizers(incomplete: str) -> list[str]:
    from dpbench.specs import OPTIMIZERS

    return listed(incomplete, OPTIMIZERS)


def sweep_dtypes(incomplete: str) -> list[str]:
    from dpbench.specs import DTYPES

    return listed(incomplete, DTYPES)


def compile_modes(incomplete: str) -> list[str]:
    from dpbench.specs import COMPILE_MODES

    return listed(incomplete, COMPILE_MODES)


def comm_hooks(incomplete: str) -> list[str]:
    from dpbench.specs import COMM_HOOKS

    return listed(incomplete, COMM_HOOKS)


def scalings(incomplete: str) -> list[str]:
    from dpbench.specs import SCALINGS

    return one(incomplete, SCALINGS)


def placements(incomplete: str) -> list[str]:
    from dpbench.placement import PLACEMENTS

    return one(incomplete, PLACEMENTS)


def learning_rate_rules(incomplete: str) -> list[str]:
    from dpbench.learning_rate import RULES

    return one(incomplete, RULES)


def dtypes(incomplete: str) -> list[str]:
    from dpbench.specs import DTYPES

    return one(incomplete, DTYPES)


def balances(incomplete: str) -> list[str]:
    from dpbench.cli.train_options import BALANCES

    return one(incomplete, BALANCES)


def evaluations(incomplete: str) -> list[str]:
    from dpbench.cli.train_options import EVALUATIONS

    return one(incomplete, EVALUATIONS)


def last_windows(incomplete: str) -> list[str]:
    from dpbench.cli.train_options import LAST_WINDOWS

    return one(incomplete, LAST_WINDOWS)


def presets(incomplete: str) -> list[str]:
    from dpbench.cli.presets import names

    return one(incomplete, names())


def charts(incomplete: str) -> list[str]:
    from dpbench.report.charts.kinds import CHARTS

    return listed(incomplete, CHARTS)


def one(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def listed(incomplete: str, names: Iterable[str]) -> list[str]:
    """Of a list with commas the last name is completed: "dp,torch-" to "dp,torch-ddp", …"""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [before + comma + name for name in one(last, names) if name not in taken]
