"""`dpbench check`, which looks for a regression."""

from __future__ import annotations

from typing import Any

from dpbench.messages import print_result
from dpbench.options.bridge import command
from dpbench.options.check import CheckOptions


@command(CheckOptions)
def check(given: dict[str, Any]) -> int:
    """Check for a performance regression, in CI or by hand.

    dpbench check --arch model.py:make --against-ref origin/main --tolerance 5%
    dpbench check --against-python ../torch-2.15/bin/python train.py --epochs 1

    Compares your code with a Git revision (--against-ref) or another Python
    (--against-python), implementations (--against), or stored sweeps (--baseline).

    Exit status: 0 pass, or inconclusive without --strict; 1 some row failed;
    2 usage; 3 regressed; 4 inconclusive with --strict; 5 no baseline, or one
    that cannot be compared; 6 wrong gradients; 130 interrupted.
    """
    from dpbench.run.gate.request import check

    found = check(given)
    print_result(found.answer.render(as_json=bool(given.get("as_json"))))
    return found.exit_status
