"""The options of `dpbench list`, `dpbench doctor` and `dpbench init`."""

from __future__ import annotations

from typing import Annotated

from dpbench.options.model import Options, Panel
from dpbench.options.shared import AS_JSON
from dpbench.options.types import Count, FilePath, one_of

NAME_KINDS = ("architectures", "implementations", "backends", "datasets", "presets", "charts")


class ListOptions(Options):
    """What to list."""

    kind: Annotated[str, one_of(NAME_KINDS)] | None = Panel.ARGUMENTS.option(
        "Kind to list with descriptions, e.g. implementations.", "KIND", usual="all"
    )
    as_json: bool = AS_JSON


class DoctorOptions(Options):
    """What the machine must have."""

    gpus: Count | None = Panel.OPTIONS.option(
        "Exit with status 1 unless this many GPUs are usable.", "N"
    )
    as_json: bool = AS_JSON


class InitOptions(Options):
    """What to write."""

    file: FilePath | None = Panel.ARGUMENTS.option(
        "File to write; it must not exist yet.", "FILE", usual="my_model.py"
    )
    example: bool = Panel.OPTIONS.option(
        "Copy the example sweep and the published tables to results/."
    )
