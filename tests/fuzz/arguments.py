"""Command lines that nobody would type: every option of every command, with hostile values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import typer
from hypothesis import strategies as st

from dpbench.analysis.levels import COLUMNS
from dpbench.analysis.metrics import METRICS
from dpbench.cli.app import app
from dpbench.report.terminal import FORMATS
from dpbench.specs.traits import IMPLEMENTATIONS

NUMBERS = (
    *("0", "1", "2", "3", "-1", "-0", "+1", "1.5", "1e3", "1_0", "٣", "0x10", "nan", "inf", "-inf"),
    *("1e309", "1e-400", "9" * 30, "9" * 5000, "1,2", "2,1", "1,", ",", "1,,2", " 1 ", "1\n"),
)
SHARES = (
    "3%",
    "1%",
    "0.5%",
    "99%",
    "50 %",
    "0%",
    "100%",
    "-1%",
    "nan%",
    "1e-300%",
    "1e309%",
    "%",
    "3 %",
    "3%%",
    "0.03",
)
TIMES = ("0.01", "0.02s", "0.0005m", "1e-9s", "0s", "-1m", "nans", "infh", "1e308h", "m", "0.0001m")
NAMES = (
    "single",
    "gloo",
    "shm",
    "nccl",
    "cpu",
    "auto",
    "weak",
    "strong",
    "adamw",
    "digits",
    "seed",
)
WORDS = (
    "",
    " ",
    "-",
    "--",
    "---",
    "'\"`$()",
    "\x1b[31m",
    "\r\n",
    "\t",
    "ß∞",
    "\ud800",
    "[bold]",
    "{}",
)
FOLDERS = ("good", "other", "damaged", "empty", "absent", "file", "published.csv", ".", "a/b/c")
SIDES = ("good:implementation=ddp", "good:backend=shm", "good:x=y", "good:", ":", "good:commit=")
LONG = ("x" * 300, "x" * 5000, "empty/" + "x" * 300, "file/below", "\x01", "a\nb", "~")
ARCHITECTURES = (
    "mnist_cnn",
    "mnist_cnn",
    "mlp",
    "json:loads",
    "nowhere:a",
    ":",
    "a:",
    ":b",
    "..:x",
    "json.:x",
    "json",
    "gpt:layers=1,width=8,heads=1",
    "model.py:build",
    "model.py:absent",
    "model.py:build:width=2",
    "absent.py:build",
    "file:build",
)
RULES = (
    "backend=shm",
    "implementation=ddp,group_size=2",
    "implementation=ddp,dtype=bf16;batch_size=8",
    "dtype=bf16,",
    "a=b",
    "=",
    ";",
    "implementation=single",
    "group_size=-1",
)
KINDS = ("throughput", "loss", "bandwidth,projection", "speedup,efficiency")
COLUMN_LISTS = (",".join(COLUMNS), "loss_slope_per_second", "mfu,mfu", "speedup,")
METRIC_LISTS = (",".join(METRICS), "efficiency=1%", "efficiency,efficiency", "efficiency=", "=")
T = TypeVar("T")

LISTED = (*FORMATS, *IMPLEMENTATIONS)

VALUES = st.one_of(
    *map(
        st.sampled_from,
        (
            NUMBERS,
            SHARES,
            TIMES,
            NAMES,
            WORDS,
            FOLDERS,
            SIDES,
            LONG,
            COLUMN_LISTS,
            METRIC_LISTS,
            LISTED,
        ),
    ),
    st.text(max_size=8).map(lambda text: text.replace("/", "").replace("\0", "").replace("..", "")),
)
"""Nothing among them is a path that leads out of the folder, and no number is so large that it
is right but takes hours."""

COMMAND = typer.main.get_command(app)
COMMANDS: dict[str, Any] = COMMAND.commands  # type: ignore[attr-defined]
FIRST: dict[str, tuple[list[str], ...]] = {
    "sweep": (["--batch-sizes", "8"],),
    "train": (["--dry-run"],),
    "report": (["--no-charts"],),
    "check": (
        [],
        ["--baseline", "good"],
        ["--against", "torch-ddp"],
    ),
    "comm": (["--no-charts"],),
    "launch": ([], ["--nproc-per-node"], ["--nproc_per_node", "2"], ["--max-restarts"], ["-m"]),
    "doctor": (["--nonsense"],),
}
"""What keeps a command from starting processes, drawing charts or taking long."""
LEFT_OUT = {"--charts", "--open"}
LIKELY = {
    "--backends": ("gloo", "shm", "gloo,shm", "cpu"),
    "--sync-backend": ("gloo", "shm", "gloo,shm", "cpu"),
    "--scaling": ("weak", "strong"),
    "--optimizer": ("sgd", "adamw", "adadelta"),
    "--optimizers": ("sgd,adamw-fused", "adadelta", "sgd,sgd"),
    "--dtype": ("f32", "bf16", "fp16"),
    "--dtypes": ("f32,bf16", "bf16", "f16", "tf32,f32", "f32,f32", "fp8"),
    "--compile": ("none,default", "max-autotune", "none", "yes"),
    "--channels-last": ("no,yes", "yes", "true"),
    "--checkpoint-activations": ("no,yes", "yes", "maybe"),
    "--bucket-cap-mb": ("auto,25", "1,4", "0.1", "0", "auto"),
    "--comm-hook": ("none,bf16", "powersgd", "fp16", "none"),
    "--exclude": RULES,
    "--preset": ("quick", "ci", "full", "paper", "none"),
    "--step": ("model.py:step", "model.py:absent", "model.py", "os:getcwd", "absent.py:step"),
    "--input-shape": ("8", "1,28,28", "0", "3x32"),
    "--evaluate": ("sharded", "rank0", "off"),
    "--last-window": ("step", "drop"),
    "--balance": ("equal", "speed"),
    "--shares": ("1", "2,1"),
    "--resume": ("auto", *FOLDERS),
    "--config": ("sweep.toml", "sweep.yaml", "damaged.toml", *FOLDERS),
    "--runs-dir": FOLDERS,
    "--data": (
        *("digits", "mnist", "synthetic", "iris", "wine", "breast_cancer", "diabetes", "text"),
        *("model.py:batches", "absent.py:data"),
    ),
    "--steps": ("auto", "1", "2", "4", "30"),
    "--repetitions": ("1", "2", "4", "5"),
    "--data-dir": ("empty", "absent", "file", "model.py"),
    "--implementation": ("ddp,single", "ddp"),
    "--arch": ARCHITECTURES,
    "--budget": TIMES,
    "--precision": SHARES,
    "--tolerance": SHARES,
    "--within": SHARES,
    "--time-limit": TIMES,
    "--format": FORMATS,
    "--columns": COLUMN_LISTS,
    "--metric": METRIC_LISTS,
    "--baseline": (*FOLDERS, *SIDES),
    "--against": tuple(IMPLEMENTATIONS),
    "--implementations": (
        "ddp,single",
        "dp",
        "ddp,torch-ddp",
        "local-sgd",
        "ddp,local-sgd",
        "independent",
    ),
    "--results-dir": FOLDERS,
    "--output": FOLDERS,
    "--junit": FOLDERS,
    "--name": ("good", "new", "a\nb", ".", ".."),
}
"""Values that get past the first checks."""


WORKLOAD_OPTIONS = frozenset(
    (
        *("--arch", "--input-shape", "--step", "--data", "--data-dir", "--batch-sizes"),
        *("--dtypes", "--compile", "--channels-last", "--checkpoint-activations", "--accumulate"),
        *("--sync-every", "--bucket-cap-mb", "--comm-hook", "--optimizers"),
        *("--exclude", "--config", "--preset", "--show-config"),
    )
)
"""What is trained, and what a row may differ in: of a sweep."""


def command_lines(name: str, only: frozenset[str] = frozenset()) -> st.SearchStrategy[list[str]]:
    """Mostly right in all places but one or two; of the options `only` those, if any."""
    options = [
        option
        for option in COMMANDS[name].params
        if option.param_type_name == "option" and (not only or only & set(option.opts))
    ]
    places = [p for p in COMMANDS[name].params if p.param_type_name == "argument"]
    given = [_given(option) for option in options if not LEFT_OUT & set(option.opts)]
    first = st.sampled_from(FIRST.get(name, ([],)))
    folders = st.tuples(*map(_folder, places)).map(_joined)
    rest = st.lists(st.one_of(given), max_size=4 if given else 0).map(_joined)
    stray = _mostly(st.just([]), VALUES.map(lambda value: [value]))
    return st.tuples(st.just([name]), first, folders, rest, stray).map(_joined)


def _joined(parts: Iterable[list[str]]) -> list[str]:
    return [word for part in parts for word in part]


def _mostly(likely: st.SearchStrategy[T], otherwise: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    return st.integers(0, 15).flatmap(lambda number: likely if number < 14 else otherwise)


def _folder(argument: Any) -> st.SearchStrategy[list[str]]:
    good = st.sampled_from(KINDS if argument.name == "kinds" else ("good", "other", "damaged"))
    one = _mostly(good, st.one_of(st.sampled_from((*FOLDERS, *SIDES)), VALUES))
    given = one.map(lambda folder: [folder])
    return given if argument.required else st.one_of(st.just([]), given)


def _given(option: Any) -> st.SearchStrategy[list[str]]:
    names = st.sampled_from([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names.map(lambda name: [name])
    likely = st.sampled_from(LIKELY.get(option.opts[0], ("1", "2", "4", "1,2")))
    return st.tuples(names, _mostly(likely, VALUES)).map(list)
