"""The commands before the first measurement: `list`, `doctor` and `init`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpbench.cli.command import command
from dpbench.options.setup import DoctorOptions, InitOptions, ListOptions

if TYPE_CHECKING:
    from dpbench.report.answer import Answer


@command(ListOptions)
def listing(options: ListOptions) -> Answer:
    """List models, implementations, backends and datasets.

    dpbench list architectures
    """
    from dpbench.run import listing

    return listing.listing(options)


@command(DoctorOptions)
def doctor(options: DoctorOptions) -> Answer:
    """Check the machine, the versions and each backend.

    Exit status: 0; 1 if a backend that should work here fails, or there are fewer
    usable GPUs than --gpus; 2 usage.
    """
    from dpbench.run import doctor

    return doctor.doctor(options)


@command(InitOptions)
def init(options: InitOptions) -> str:
    """Write a template file for a model of your own."""
    from dpbench.run import init

    return init.init(options)
