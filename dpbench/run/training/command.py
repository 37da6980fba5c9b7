"""The options of `dpbench train` with those that belong to one call: files and output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dpbench.run import presets
from dpbench.run.shared_options import CONFIG_OPTION, flag, name_option, option, show_config_option
from dpbench.run.training.options import KEPT_PANEL, TrainOptions
from dpbench.specs.settings import Kind, PathName, Setting, Text

OUTPUT_PANEL = "Run folder and output"


def _of_a_call(name: str, kind: Kind, help: str, panel: str | None = None, **more: Any) -> Setting:
    return option(name, kind, help, panel, scope="call", **more)


def _output(name: str, help: str, **more: Any) -> Setting:
    """A flag that says what the command prints."""
    return flag(name, help, OUTPUT_PANEL, scope="call", in_python=False, **more)


@dataclass(frozen=True, kw_only=True)
class TrainCommand(TrainOptions):
    """TrainOptions with the options that belong to one call."""

    preset: Annotated[
        str | None,
        _of_a_call(
            "--preset",
            Text(),
            "Start from a preset: torch-ddp.",
            metavar="NAME",
            complete=presets.training_names,
            common=True,
        ),
    ] = None
    config: Annotated[Path | None, CONFIG_OPTION] = None
    resume: Annotated[
        str | None,
        _of_a_call(
            "--resume",
            Text(),
            "Resume a run, from a checkpoint, or (auto) the run of this training.",
            KEPT_PANEL,
            metavar="auto|RUN|FILE",
            common=True,
        ),
    ] = None
    name: Annotated[
        str | None,
        name_option(
            "Name of the run folder.", OUTPUT_PANEL, "the time and the architecture", common=True
        ),
    ] = None
    runs_dir: Annotated[
        Path,
        _of_a_call(
            "--runs-dir",
            PathName(),
            "Directory for run folders.",
            OUTPUT_PANEL,
            metavar="DIR",
            common=True,
            elsewhere="--results-dir --output --output-dir -o",
        ),
    ] = Path("runs")
    show_config: Annotated[bool, show_config_option(OUTPUT_PANEL)] = False
    dry_run: Annotated[
        bool, _output("--dry-run", "Print the size of a step and exit.", common=True)
    ] = False
    memory: Annotated[bool, _output("--memory", "Print each rank's memory at the end.")] = False
    json_result: Annotated[
        bool,
        _output(
            "--json",
            "Print the result as JSON on stdout, and everything else on stderr.",
            argument="json_result",
        ),
    ] = False
    json_lines: Annotated[
        bool, _output("--json-lines", "Print the log as JSON Lines on stdout.")
    ] = False
    quiet: Annotated[bool, _output("--quiet", "Print only the result.", also=("-q",))] = False
    seq_len: Annotated[
        str | None,
        _of_a_call(
            "--seq-len",
            Text(),
            "What other programs call an option of the architecture here.",
            also=("--seq-length", "--sequence-length"),
            in_python=False,
            hidden=True,
        ),
    ] = None
    local_rank: Annotated[
        str | None,
        _of_a_call(
            "--local-rank",
            Text(),
            "What torch.distributed.launch adds; the variable of this name says the same.",
            also=("--local_rank",),
            in_python=False,
            hidden=True,
        ),
    ] = None
