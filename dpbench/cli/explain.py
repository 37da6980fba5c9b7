"""`dpbench explain`: why a configuration is as fast as it is, and what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpbench.cli.signature import command
from dpbench.cli.streams import say_preparing
from dpbench.options.explain import ExplainOptions
from dpbench.options.reading import read_options

if TYPE_CHECKING:
    from dpbench.report.answer import Answer


@command(ExplainOptions)
def explain(typed: dict[str, Any]) -> Answer:
    """Show where scaling efficiency is lost, and what to try.

    dpbench explain --gpus 4 train.py --epochs 1

    dpbench explain results/before-the-change --group-size 2

    A training script is measured as it is, on one rank, as copies, and on all ranks.
    Without options that choose rows, explains the fastest one with several replicas. Include
    independent in the sweep to separate contention from the wrapper.

    Exit status: 0 explained; 1 the script failed; 2 usage; 4 inconclusive: too
    noisy for an efficiency; 130 interrupted.
    """
    options = read_options(ExplainOptions, typed)
    if options.script_and_arguments:
        say_preparing(typed)
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.explaining import explain

    return explain(options, TrialProgress(quiet=options.quiet))
