"""`dpbench project`: what other group sizes and networks would give."""

from __future__ import annotations

from typing import Any

from dpbench.cli.signature import command
from dpbench.messages import print_result
from dpbench.options.reading import read_options
from dpbench.options.results import ProjectOptions


@command(ProjectOptions)
def project(typed: dict[str, Any]) -> None:
    """Project speed to other group sizes and networks.

    dpbench project results/scaling --group-sizes 8,16

    dpbench project results/scaling --topology h100-nvswitch-ndr

    Without a network, a scaling law predicts up to four times the largest measured group size.
    With a network, steps are simulated.
    """
    options = read_options(ProjectOptions, typed)
    from dpbench.run.projection import project

    print_result(project(options).render(as_json=options.as_json))
