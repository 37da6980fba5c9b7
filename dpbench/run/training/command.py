"""Options that belong to one call of `dpbench train`: places of files, and output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dpbench.run import presets
from dpbench.run.shared_options import flag, option
from dpbench.run.training.options import KEPT, TrainOptions
from dpbench.specs.settings import PathName, Text

OUTPUT = "Run folder and output"


@dataclass(frozen=True, kw_only=True)
class TrainCommand(TrainOptions):
    """The same with what belongs to one call: places of files, and what is printed."""

    preset: Annotated[
        str | None,
        option(
            "--preset",
            Text(),
            "Start from a preset: torch-ddp.",
            metavar="NAME",
            complete=presets.training_names,
            common=True,
        ),
    ] = None
    config: Annotated[
        Path | None,
        option(
            "--config",
            PathName(),
            "Read options from a TOML or YAML file; the command line overrides it.",
            also=("-f",),
            metavar="FILE",
            common=True,
        ),
    ] = None
    resume: Annotated[
        str | None,
        option(
            "--resume",
            Text(),
            "Resume a run, from a checkpoint, or (auto) the run of this training.",
            KEPT,
            metavar="auto|RUN|FILE",
            common=True,
        ),
    ] = None
    name: Annotated[
        str | None,
        option(
            "--name",
            Text(),
            "Name of the run folder.",
            OUTPUT,
            metavar="NAME",
            default_text="the time and the architecture",
            common=True,
        ),
    ] = None
    runs_dir: Annotated[
        Path,
        option(
            "--runs-dir",
            PathName(),
            "Directory for run folders.",
            OUTPUT,
            metavar="DIR",
            common=True,
            elsewhere="--results-dir --output --output-dir -o",
        ),
    ] = Path("runs")
    show_config: Annotated[
        bool, flag("--show-config", "Print all options as YAML and exit.", OUTPUT)
    ] = False
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the size of a step and exit.", OUTPUT, common=True)
    ] = False
    memory: Annotated[bool, flag("--memory", "Print each rank's memory at the end.", OUTPUT)] = (
        False
    )
    json_result: Annotated[
        bool,
        flag(
            "--json",
            "Print the result as JSON on stdout, and everything else on stderr.",
            OUTPUT,
            argument="json_result",
        ),
    ] = False
    json_lines: Annotated[
        bool, flag("--json-lines", "Print the log as JSON Lines on stdout.", OUTPUT)
    ] = False
    quiet: Annotated[bool, flag("--quiet", "Print only the result.", OUTPUT, also=("-q",))] = False
    seq_len: Annotated[
        str | None,
        option(
            "--seq-len",
            Text(),
            "What other programs call an option of the architecture here.",
            also=("--seq-length", "--sequence-length"),
            hidden=True,
        ),
    ] = None
    local_rank: Annotated[
        str | None,
        option(
            "--local-rank",
            Text(),
            "What torch.distributed.launch adds; the variable of this name says the same.",
            also=("--local_rank",),
            hidden=True,
        ),
    ] = None
