"""The options of `dpbench sweep`, each declared once, and which of them go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpbench.data.registry import is_function
from dpbench.errors import UsageError
from dpbench.messages import as_typed, option_words
from dpbench.options import shared
from dpbench.options.model import OptionError, Panel, Subject, options_of
from dpbench.options.shared import DEFAULT_SCRIPT_WARMUP, is_script
from dpbench.options.types import (
    CommaList,
    Count,
    FilePath,
    Megabytes,
    Number,
    Positive,
    one_of,
    word_for_none,
)
from dpbench.specs.axes import AXES, PLACEHOLDER
from dpbench.specs.parallel import COMM_HOOKS, Scaling
from dpbench.specs.traits import INDEPENDENT, OPTIONAL_SETTINGS, SCRIPT, SINGLE

DEFAULT_WARMUP = 5
DEFAULT_STEPS = 50
"""Steps of a window that cannot fill a time, as their number must be known before it begins."""
SCRIPT_IMPLEMENTATIONS = (SCRIPT, "ddp", SINGLE, INDEPENDENT)
"""The implementations that a training script can be measured with."""
BucketCap = Annotated[Megabytes | None, *word_for_none("bucket_cap_mb")]
OnOff = Annotated[Literal["on", "off"] | None, *word_for_none("find_unused")]
DataWorkers = Annotated[Annotated[Number, Field(le=256)] | None, *word_for_none("data_workers")]
Prefetch = Annotated[Annotated[Number, Field(le=1024)] | None, *word_for_none("prefetch")]


class SweepOptions(shared.Measuring, shared.MeasuredRows, shared.TrainingScript):
    """Every option of a sweep; None leaves it to dpbench, which decides by machine and data."""

    presets = ("quick", "ci", "full", "paper")  # from the shortest to the longest
    script: str | None = Panel.ARGUMENTS.option(
        "A training script to measure in the place of --arch.", "SCRIPT"
    )
    scaling: CommaList[Scaling] = Panel.COMPARED.option(
        "Fix the batch size per replica (weak) or per group (strong).",
        "weak,strong",
        default=("weak",),
        subjects=Subject.MODEL,
    )
    optimizer: CommaList[shared.Optimizer] = Panel.COMPARED.option(
        "sgd, adam or adamw, also -fused or -foreach; adadelta, also -foreach.",
        "A,B",
        default=("sgd",),
        names=("--optimizers",),
    )
    lr: CommaList[Positive] = Panel.COMPARED.option(
        "Learning rate.", "X,X", default=(0.01,), names=("--lrs",)
    )
    seed: CommaList[Number] = Panel.COMPARED.option(
        "Seed for weights and sample order.", "N,N", default=(0,), names=("--seeds",)
    )
    dtype: CommaList[shared.Dtype] = Panel.COMPARED.option(
        "Dtype of the forward pass: f32, bf16, f16 or tf32.",
        "A,B",
        default=("f32",),
        names=("--dtypes",),
    )
    compile: CommaList[shared.CompileMode] = Panel.COMPARED.option(
        "torch.compile: none, default, reduce-overhead, max-autotune.", "A,B", default=("none",)
    )
    accumulate: CommaList[Count] = Panel.COMPARED.option(
        "Micro-batches per optimizer step.", "N,N", default=(1,)
    )
    sync_every: CommaList[Count] = Panel.COMPARED.option(
        "Steps between parameter averages (local-sgd).", "N,N", default=(1,), subjects=Subject.MODEL
    )
    bucket_cap_mb: CommaList[BucketCap] = Panel.COMPARED.option(
        "Bucket size in MiB, or auto (ddp, torch-ddp).",
        "X,X",
        default=(None,),
        usual="auto: 1, then 25",
    )
    find_unused: CommaList[OnOff] = Panel.COMPARED.option(
        "Look for unused parameters: on, off or auto (ddp, torch-ddp).", "on,off", default=(None,)
    )
    comm_hook: CommaList[Annotated[str, one_of(COMM_HOOKS)]] = Panel.COMPARED.option(
        "Gradient compression: none, bf16 or powersgd (ddp, torch-ddp).",
        "A,B",
        default=("none",),
        names=("--comm-hooks",),
        subjects=Subject.MODEL,
    )
    batched_copy: CommaList[OnOff] = Panel.COMPARED.option(
        "Copy the gradients of a bucket at once: on, off or auto (torch-ddp).",
        "on,off",
        default=(None,),
        subjects=Subject.MODEL,
    )
    overlap: CommaList[Literal["on", "off"]] = Panel.COMPARED.option(
        "Reduce gradients during the backward pass (ddp).",
        "on,off",
        default=("on",),
        subjects=Subject.MODEL,
    )
    prefetch: CommaList[Prefetch] | None = Panel.COMPARED.option(
        "Steps to load ahead; resident: all on the device.",
        "N,N",
        usual="resident; 0 with your own dataset",
        subjects=Subject.MODEL,
    )
    data_workers: CommaList[DataWorkers] = Panel.COMPARED.option(
        "DataLoader workers per rank (with --prefetch, or of a script).",
        "N,N",
        default=(None,),
        usual="auto: none, or the script's own",
    )
    threads: CommaList[Count] | None = Panel.COMPARED.option(
        "CPU threads per replica.", "N,N", usual=shared.USUAL_THREADS
    )
    warmup: CommaList[Number] | None = Panel.COMPARED.option(
        "Warm-up steps.", "N,N", usual=f"{DEFAULT_WARMUP}; {DEFAULT_SCRIPT_WARMUP} for a script"
    )
    steps: CommaList[Count] | None = Panel.COMPARED.option(
        "Timed steps.", "N,N", usual=f"enough for one second, or {DEFAULT_STEPS}"
    )

    lr_scaling: shared.LrRule = Panel.MEASUREMENT.option(
        "Scale --lr with the samples per step: none, linear or sqrt.",
        "RULE",
        default="none",
        subjects=Subject.MODEL,
    )
    stop_after_failure: bool = Panel.MEASUREMENT.option(
        "Skip the larger group sizes of a row that failed.", subjects=Subject.MODEL
    )
    debug: bool = Panel.MACHINE.option("Enable debug logs of torch.distributed and NCCL.")
    nnodes: Count | None = Panel.NODES.option("Number of nodes; run the command on each.", "N")
    node_rank: Number | None = Panel.NODES.option(
        "Rank of this node; node 0 writes the results.", "N"
    )
    rdzv_endpoint: str | None = Panel.NODES.option("Address where node 0 listens.", "HOST:PORT")
    resume: bool = Panel.OUTPUT.option("Run the trials of --name that have not completed.")
    dry_run: bool = Panel.OUTPUT.option(
        "Print the plan and the least time it takes, and exit.", printed=True
    )
    charts: bool = Panel.OUTPUT.option("Draw charts.", default=True)
    verbose: bool = Panel.OUTPUT.option("Also print notes.", names=("-v",), printed=True)
    preset: str | None = Panel.OPTIONS.option(
        "Start from a preset: quick, ci, full or paper.", "NAME", subjects=Subject.MODEL
    )
    config: FilePath | None = shared.CONFIG_FILE

    @property
    def subject(self) -> Subject:
        """What is measured."""
        return Subject.MODEL if self.script is None else Subject.SCRIPT

    @property
    def measured_implementations(self) -> tuple[str, ...]:
        """The implementations that are asked for, or the default ones."""
        usual = shared.DEFAULT_IMPLEMENTATIONS if self.script is None else (SCRIPT,)
        return self.implementations or (*usual, INDEPENDENT)

    @model_validator(mode="after")
    def _go_together(self) -> SweepOptions:
        """Raise UsageError for options that contradict each other, or would have no effect."""
        names = self.measured_implementations
        if self.script is None:
            self._check_model(names)
        else:
            self._check_script(self.script, names)
        for setting in sorted(OPTIONAL_SETTINGS):
            values = getattr(self, setting)
            if values != type(self).model_fields[setting].default:
                shared.require_setting(setting, AXES[setting].text(values), names)
        if self.backends:
            shared.require_setting("backends", self.backends, names)
        loading = self.prefetch or ()
        if None in loading and self.data is not None and is_function(self.data):
            raise UsageError(
                f"--prefetch resident: the samples of {self.data} may not fit on the device; "
                "expected a number of steps to load ahead, or 0"
            )
        if any(self.data_workers) and not any(loading) and self.script is None:
            workers = as_typed(self.data_workers)
            raise OptionError("data_workers", f" {workers}: workers need --prefetch of 1 or more")
        if self.resume and self.name is None:
            raise UsageError("--resume needs the --name of the sweep to finish")
        return self

    def _check_model(self, names: Sequence[str]) -> None:
        """Raise UsageError for what only a training script has."""
        if self.module or self.arguments:
            raise UsageError("expected the name of a training script, or of a module after -m")
        if SCRIPT in names:
            raise OptionError(
                "implementations", f" {SCRIPT}: expected a training script to measure"
            )

    def _check_script(self, script: str, names: Sequence[str]) -> None:
        """Raise UsageError for a name that is no script's, and for what a script does not have."""
        if not is_script(script, is_module=self.module):
            raise UsageError(
                f"script: got {script!r}; expected a training script, whose name ends in .py, or "
                "-m and a module"
            )
        for name in names:
            if name not in SCRIPT_IMPLEMENTATIONS:
                usable = ", ".join(SCRIPT_IMPLEMENTATIONS)
                problem = f" {name}: a training script can be measured with {usable}"
                raise OptionError("implementations", problem)
        places = {place for word in self.arguments for place in PLACEHOLDER.findall(word)}
        for place, axis in AXES.items():
            field = axis.option
            if axis.in_scripts and (field in self.model_fields_set) != (place in places):
                name = option_words(field)
                values = options_of(type(self))[field].metavar
                problem = (
                    f" of dpbench sweep and {{{place}}} in the arguments of the script go together:"
                    f" dpbench sweep {name} {values} train.py {option_words(place)} {{{place}}}"
                )
                raise OptionError(field, problem)
