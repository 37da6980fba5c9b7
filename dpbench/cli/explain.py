"""`dpbench explain`: why a configuration is as fast as it is, and what to try."""

from __future__ import annotations

from typing import Any

from dpbench.messages import print_result
from dpbench.options.bridge import command, read_options
from dpbench.options.explain import ExplainOptions


@command(ExplainOptions)
def explain(typed: dict[str, Any]) -> None:
    """Show where scaling efficiency is lost, and what to try.

    dpbench explain --gpus 4 train.py --epochs 1

    dpbench explain results/before-the-change --group-size 2

    A training script is measured as it is, on one rank, as copies, and on all ranks.
    Without options that choose rows, explains the fastest one with several replicas. Include
    independent in the sweep to separate contention from the wrapper.
    """
    options = read_options(ExplainOptions, typed)
    from dpbench.cli.show_results import latest
    from dpbench.run.explaining import explain

    if options.folder is None:
        (folder,) = latest("explain")
        options = options.model_copy(update={"folder": folder})

    print_result(explain(options).render(as_json=options.as_json))
