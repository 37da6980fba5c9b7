"""Parts of models that several commands have, and single declarations.

A class here is a part; the class of a command is called `…Options` and stands in its own module.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from dpbench.data.registry import DATASETS, is_function
from dpbench.errors import UsageError, expected_name
from dpbench.messages import as_typed, option_words
from dpbench.options.model import OptionError, Options, Panel, Subject
from dpbench.options.types import (
    ArchitectureList,
    Code,
    CommaList,
    Count,
    Duration,
    FilePath,
    Gpus,
    one_of,
)
from dpbench.specs import AXES, IDENTITY
from dpbench.specs.sweep import MAX_REPETITIONS
from dpbench.specs.traits import BACKENDS, IMPLEMENTATIONS, SINGLE, usual_backend
from dpbench.specs.workload import COMPILE_MODES, DTYPE_NAMES, LR_RULES, OPTIMIZERS

if TYPE_CHECKING:
    from dpbench.analysis.collectives import CollectiveRow
    from dpbench.analysis.rows import Row

MAX_WORD: Literal["max"] = "max"
"""The word for the largest group."""
DEFAULT_ARCHITECTURE = "mnist_cnn"
DEFAULT_IMPLEMENTATIONS = ("dp", "ddp", "torch-ddp", SINGLE)
"""Default of --implementations, beside INDEPENDENT at the largest group size."""
DEFAULT_BATCH_SIZES = (32, 64, 128)
DEFAULT_SCRIPT_WARMUP = 10
"""Warm-up steps of a script: torch's wrapper and loader workers settle in the first ones."""
MIN_SCRIPT_STEPS = 20
"""Fewest steps that are timed as they are: two segments of a round."""
DEFAULT_REPETITIONS = 4
"""Default of --repetitions. Even: only whole palindromes cancel a drift of the machine."""
USUAL_THREADS = "cores ÷ largest group; of a script OMP_NUM_THREADS, or 1"
USUAL_BACKEND = f"{usual_backend('cuda')} with CUDA, else {usual_backend('cpu')}"

ImplementationName = Annotated[str, one_of(tuple(IMPLEMENTATIONS))]
"""An implementation of rows, of which `script` is a training script as it is."""
BackendName = Annotated[str, one_of({**{b: b for b in BACKENDS}, "cpu": "shm"})]
"""A backend with a process group; "cpu" is the name in other tools for staging through the host."""
Optimizer = Annotated[str, one_of(OPTIMIZERS)]
Dtype = Annotated[str, one_of(DTYPE_NAMES)]
CompileMode = Annotated[str, one_of(COMPILE_MODES)]
LrRule = Annotated[str, one_of(LR_RULES)]
GroupSizes = CommaList[Count | Literal["max"]]


def _dataset(name: str) -> str:
    if not (is_function(name) or name in DATASETS):
        raise ValueError(expected_name(name, tuple(DATASETS)))
    return name


DatasetName = Annotated[Code, AfterValidator(_dataset)]
"""A dataset of dpbench's, or a user's "file.py:function"."""


def is_script(word: str, *, is_module: bool) -> bool:
    """Whether a word names a training script, as a file or after -m, and no results folder."""
    return is_module or (word.endswith(".py") and not Path(word).is_dir())


AS_JSON = Panel.OPTIONS.option("Print JSON on stdout, the rest on stderr.", printed=True)
CONFIG_FILE = Panel.OPTIONS.option("Read options from a TOML or YAML file.", "FILE", names=("-f",))
GPUS = Panel.OPTIONS.option(
    "Number of GPUs, or ids (0,1); without CUDA, CPU replicas.",
    "N|I,J",
    usual="all, or one per core",
    subjects=Subject.MEASURED,
)
RESULTS = Panel.ARGUMENTS.option(
    "Results folder, a directory of them, or a CSV file.", "PATH", usual="the latest in results/"
)


class Measuring(Options):
    """How a command measures, and where its results go."""

    repetitions: Annotated[Count, Field(le=MAX_REPETITIONS)] = Panel.MEASUREMENT.option(
        "Runs of each row in fresh processes.", "N", default=DEFAULT_REPETITIONS
    )
    time_limit: Duration = Panel.MEASUREMENT.option(
        "Time limit of each run.", "TIME", default=300.0, usual="5m"
    )
    oversubscribe: bool = Panel.MACHINE.option("Allow more replicas than cores or GPUs.")
    results_dir: FilePath = Panel.OUTPUT.option(
        "Directory for results folders.", "DIR", default=Path("results"), subjects=Subject.MEASURED
    )
    name: str | None = Panel.OPTIONS.option(
        "Name of the results folder.",
        "NAME",
        usual="the time and what is measured",
        subjects=Subject.MEASURED,
    )
    quiet: bool = Panel.OUTPUT.option("Show no progress.", names=("-q",), printed=True)
    as_json: bool = AS_JSON


class TrainingScript(Options):
    """How the training script that the command names is started; what follows its name on the
    command line is its own."""

    arguments: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ] = Panel.ARGUMENTS.option(
        "Arguments of the script.",
        "ARGUMENTS",
        default=(),
        subjects=Subject.MEASURED,
        repeated=True,
    )
    module: bool = Panel.MEASUREMENT.option(
        "The script is a module, as in python -m.", names=("-m",)
    )


class MeasuredRows(Options):
    """The measured rows, every combination of these, and their samples."""

    arch: ArchitectureList = Panel.OPTIONS.option(
        "Model: a name from 'dpbench list', or file.py:function.",
        "A,B",
        default=(DEFAULT_ARCHITECTURE,),
        subjects=Subject.MODEL,
    )
    gpus: Gpus | None = GPUS
    implementations: CommaList[ImplementationName] | None = Panel.OPTIONS.option(
        "Implementations; see 'dpbench list implementations'.",
        "A,B",
        usual=f"{as_typed(DEFAULT_IMPLEMENTATIONS)}, and independent at the largest group size",
        subjects=Subject.MEASURED,
    )
    backends: CommaList[BackendName] | None = Panel.OPTIONS.option(
        "gloo, shm or nccl; 'dpbench list backends' has all.",
        "A,B",
        names=("--sync-backend",),
        usual=USUAL_BACKEND,
        subjects=Subject.MEASURED,
    )
    batch_sizes: CommaList[Count] | None = Panel.OPTIONS.option(
        "Samples per replica.",
        "N,N",
        usual=as_typed(DEFAULT_BATCH_SIZES),
        subjects=Subject.MEASURED,
    )
    group_sizes: GroupSizes | None = Panel.OPTIONS.option(
        "Numbers of replicas to measure; max: all --gpus.",
        "N,N",
        usual="1 (single alone) to --gpus; above 4: 1, 2, 4, …",
        subjects=Subject.MEASURED,
    )
    data: DatasetName | None = Panel.DATA.option(
        "Dataset: a name from 'dpbench list', or file.py:function.",
        "NAME",
        usual="the architecture's own",
    )
    data_dir: FilePath | None = Panel.DATA.option("Folder with the MNIST files.", "DIR")


class RowFilter(Options):
    """The rows of results to keep; None for all."""

    filters: ClassVar[tuple[str, ...]] = IDENTITY
    """The axes that rows are chosen by; the option of each lists the values to keep."""
    implementations: CommaList[str] | None = Panel.ROWS.option(
        "Show only these implementations.", "A,B"
    )
    backends: CommaList[str] | None = Panel.ROWS.option("Show only these backends.", "A,B")
    batch_sizes: CommaList[Count] | None = Panel.ROWS.option("Show only these batch sizes.", "N,N")
    group_sizes: CommaList[Count] | None = Panel.ROWS.option(
        "Show only these numbers of replicas.", "N,N"
    )

    @property
    def subject(self) -> Subject:
        """Stored results."""
        return Subject.RESULTS

    @property
    def wanted(self) -> dict[str, tuple[Any, ...]]:
        """The values to keep of each attribute that an option chooses by."""
        values = {name: getattr(self, AXES[name].option) for name in self.filters}
        return {name: chosen for name, chosen in values.items() if chosen is not None}

    def keeps(self, row: Row | CollectiveRow) -> bool:
        """Whether a row of results is one of those."""
        # Collectives have no implementation and no batch size.
        return all(getattr(row, name, None) in kept for name, kept in self.wanted.items())

    def require_rows(self, rows: Sequence[Row | CollectiveRow], source: str | Path) -> None:
        """Raise UsageError if it keeps none of the rows, which are those of `source`."""
        if rows and not any(map(self.keeps, rows)):
            raise UsageError(f"{source}: no such row; there are {self.choices(rows)}")

    def choices(self, rows: Sequence[Row | CollectiveRow]) -> str:
        """The values of rows that the options can choose: numbers ascend, names are in the order of
        the rows."""
        parts = []
        for name in self.filters:
            values = dict.fromkeys(getattr(row, name, None) for row in rows)
            values.pop(None, None)
            ordered = sorted(values, key=lambda value: value if isinstance(value, int) else 0)
            if ordered:
                parts.append(f"{option_words(AXES[name].option)} {', '.join(map(str, ordered))}")
        return "; ".join(parts)


def require_setting(
    option: str, value: Any, implementations: Collection[str], chosen_by: str = "implementations"
) -> None:
    """Raise OptionError for a setting, or for backends, that none of the implementations has;
    `chosen_by` is the option that names them."""
    is_backend = option in ("backend", "backends")
    having = [
        name
        for name, traits in IMPLEMENTATIONS.items()
        if (traits.exchange == "ranks" if is_backend else traits.has_setting(option))
    ]
    if not {*having} & {*implementations}:
        expected = f"expected {option_words(chosen_by)} with {' or '.join(having)}"
        got = f"got {','.join(implementations)}"
        raise OptionError(option, f" {as_typed(value)}: {expected}, {got}")
