"""`dpbench demo`: small trainings that check themselves."""

from __future__ import annotations

import importlib
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.cli.messages import say
from dpbench.cli.terminal import table_width
from dpbench.errors import UnknownName

if TYPE_CHECKING:
    from dpbench.training.demos.section import Check, Checks, Section, Table

EXIT_STATUSES = "Exit status: 0 every check holds; 1 some check fails; 2 usage."

DEMOS = {
    "dp-train": "A regression on 1, 2 and 4 replicas (or all GPUs), with checks and speeds.",
    "iris": "150 flowers of three species: dp_train beside the plain loop, accuracy held out.",
}
"""What each shows; its module has its name."""


def demo(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"{' or '.join(DEMOS)}; none lists them.")
    ] = None,
) -> int:
    """Train a small model in front of you, and check what came out of it.

    dpbench demo dp-train
    """
    if name is None:
        for known, what in DEMOS.items():
            typer.echo(f"{known:10}{what}")
        return 0
    if name not in DEMOS:
        raise UnknownName("demo", name, DEMOS)
    return _run(name)


def _run(name: str) -> int:
    """Shows what the demo finds as it finds it; the exit status."""
    from dpbench.training.demos.section import Checks
    from dpbench.training.demos.threads import one_thread

    module = importlib.import_module(f"dpbench.training.demos.{name.replace('-', '_')}")
    checks: list[Check] = []
    with one_thread():
        for number, section in enumerate(module.run()):
            typer.echo(("\n" if number else "") + _text(section))
            if isinstance(section, Checks):
                checks += section.checks
    failed = sum(not check.holds for check in checks)
    say(f"demo {name}: {len(checks) - failed} of {len(checks)} checks hold")
    return 1 if failed else 0


def _text(section: Section) -> str:
    from dpbench.training.demos.section import Table

    if isinstance(section, str):
        return textwrap.fill(section, table_width())
    return _table(section) if isinstance(section, Table) else _checks(section)


def _table(table: Table) -> str:
    from dpbench.report.table import text_table
    from dpbench.report.terminal import write_table

    return write_table(text_table(table.headers, table.rows, words=table.words))


def _checks(checks: Checks) -> str:
    from dpbench.report.table import bare_table
    from dpbench.report.terminal import folded, write_table

    rows = [["✓" if check.holds else "✗", check.claim, check.found] for check in checks.checks]
    return write_table(folded(bare_table(rows), ["1"], limit=table_width()), "plain")
