"""`dpbench check`, which looks for a regression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpbench.cli.signature import command
from dpbench.cli.streams import say_preparing
from dpbench.options.check import CheckOptions
from dpbench.options.reading import read_options

if TYPE_CHECKING:
    from dpbench.report.answer import Answer


@command(CheckOptions)
def check(typed: dict[str, Any]) -> Answer:
    """Check for a performance regression, in CI or by hand.

    dpbench check --arch model.py:make --against-ref origin/main --tolerance 5%
    dpbench check --against-python ../torch-2.15/bin/python train.py --epochs 1

    Compares your code with a Git revision (--against-ref) or another Python
    (--against-python), implementations (--against), or stored sweeps (--baseline).

    Exit status: 0 pass, or inconclusive without --strict; 1 some row failed;
    2 usage; 3 regressed; 4 inconclusive with --strict; 5 no baseline, or one
    that cannot be compared; 6 wrong gradients; 130 interrupted.
    """
    if "baseline" not in typed:
        say_preparing(typed)
    options = read_options(CheckOptions, typed)
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.check.checking import run_check

    return run_check(options, TrialProgress(quiet=options.quiet))
