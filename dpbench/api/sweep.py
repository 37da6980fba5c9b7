"""`dpbench.sweep`: the command of the same name, called from Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from signal import SIGINT
from typing import Any

from dpbench.api import host_program
from dpbench.api.arguments import check_flags, check_folder, check_importable, plain, text, words
from dpbench.api.results import Results
from dpbench.cli.messages import said_to, to_stderr
from dpbench.cli.sweep import make_importable
from dpbench.cli.sweep_options import SweepOptions, parse
from dpbench.errors import Interrupted

Names = str | Iterable[str]
Sizes = int | str | Iterable[int]
Count = int | str
FLAGS = ("stop_after_failure", "oversubscribe", "resume", "synthetic", "progress")
OPTION_OF = {"synthetic": "--synthetic-launcher"}
"""Where it is spelt differently."""


def sweep(
    *,
    implementations: Names = ("dp", "ddp"),
    backends: Names | None = None,
    sync_backend: Names | None = None,
    batch_sizes: Sizes = (32, 64, 128),
    group_sizes: Sizes | None = None,
    scaling: str = "weak",
    arch: str = "mnist_cnn",
    input_shape: Sizes | None = None,
    step: str | None = None,
    data: str | None = None,
    data_dir: str | PathLike[str] | None = None,
    warmup: Count = 10,
    steps: Count | None = None,
    repetitions: Count | None = None,
    precision: str | None = None,
    budget: float | str | None = None,
    accumulate: Sizes | None = None,
    dtypes: Names | None = None,
    compile: Names | None = None,
    channels_last: bool | Sequence[bool] | None = None,
    checkpoint_activations: bool | Sequence[bool] | None = None,
    sync_every: Sizes | None = None,
    bucket_cap_mb: float | str | Sequence[float | str] | None = None,
    comm_hook: Names | None = None,
    prefetch: int | str | Sequence[int | str] | None = None,
    data_workers: Sizes | None = None,
    exclude: Names | None = None,
    include: Names | None = None,
    optimizer: Names | None = None,
    lr: float | str = 0.01,
    lr_scaling: str = "none",
    seed: Count = 0,
    target_loss: float | str | None = None,
    phases: Count = 5,
    noise_scale: Count = 0,
    trace: Count = 0,
    gradient_steps: Count = 10,
    time_limit: float | str = "5m",
    stop_after_failure: bool = False,
    gpus: Sizes | None = None,
    threads: Count | None = None,
    oversubscribe: bool = False,
    order_seed: Count | None = None,
    name: str | None = None,
    results_dir: str | PathLike[str] = "results",
    resume: bool = False,
    retry: Names | None = None,
    synthetic: bool = False,
    progress: bool = False,
) -> Results:
    """Measures every combination of implementation, backend, group size, batch size and settings.

    Options, defaults and checks are those of `dpbench sweep`; what is a comma-separated list
    there may be a list, an array or a generator, a number a number (`gpus`: 2 is a count, [0, 1]
    are ids). Records go into a folder of their own in `results_dir` as they come; without `name`
    its name is the time and `arch`, and a number where that is taken. No report is written. Prints
    nothing but, with `progress`, what the command prints on stderr. `synthetic`: starts nothing;
    numbers from a cost model, to try things out.

    Raises UsageError for an option that cannot be, StoreError for a folder, DataError for data.
    A trial that fails is a row with a status and a reason. Ctrl-C is a KeyboardInterrupt that
    says how to go on: what was measured is stored.
    """
    return _measure(locals())


def _measure(given: dict[str, Any]) -> Results:
    check_flags(given, FLAGS)
    check_importable(given["arch"])
    if given["data"] is not None:
        check_importable(given["data"], "data")
    given = plain(given, sweep)
    check_folder("results_dir", given["results_dir"])
    texts = {name: text(name, value) for name, value in given.items() if name not in FLAGS}
    flags = {name: given[name] for name in FLAGS}
    make_importable(given["arch"], given["step"], given["data"])
    typed = {**texts, **flags}
    options = parse(SweepOptions(**{one.name: typed[one.name] for one in fields(SweepOptions)}))
    from dpbench.cli.sweep_preparation import SweepRequest, find_place, prepare

    request = SweepRequest(
        options=options,
        name=texts["name"],
        results_dir=Path(texts["results_dir"] or ""),
        data_dir=None if texts["data_dir"] is None else Path(texts["data_dir"]),
        resume=flags["resume"],
        retry=texts["retry"],
        quiet=not flags["progress"],
        synthetic=flags["synthetic"],
        stop_after_failure=flags["stop_after_failure"],
        command=command(given),
        embedded=True,
    )
    said: list[str] = []

    def listen(message: str) -> None:
        said.append(message)
        if flags["progress"]:
            to_stderr(message)

    with host_program.alone(starts_ranks=not flags["synthetic"]), said_to(listen):
        try:
            return Results(sweep=prepare(request, find_place(request)).measure(), said=said)
        except Interrupted as error:
            if error.signal_number != SIGINT:
                raise
            raise KeyboardInterrupt(str(error)) from None


def command(given: dict[str, Any]) -> list[str]:
    """What to type after "dpbench" for the same sweep."""
    typed = words(given, sweep, flags=FLAGS, unsaid=("progress",), option_of=OPTION_OF)
    return ["sweep", *typed]
