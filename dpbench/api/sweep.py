"""`dpbench.sweep`: the command of the same name, called from Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields
from os import PathLike, fspath
from pathlib import Path
from signal import SIGINT
from typing import Any

from dpbench.api import host_program
from dpbench.api.results import Results
from dpbench.cli.messages import said_to, to_stderr
from dpbench.cli.sweep import make_importable
from dpbench.cli.sweep_options import SweepOptions, parse
from dpbench.errors import Interrupted, UsageError

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
    data: str | None = None,
    data_dir: str | PathLike[str] | None = None,
    warmup: Count = 10,
    steps: Count | None = None,
    repetitions: Count | None = None,
    precision: str | None = None,
    budget: float | str | None = None,
    accumulate: Count = 1,
    sync_every: Count | None = None,
    bucket_cap_mb: float | str | None = None,
    optimizer: str = "sgd",
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
    synthetic: bool = False,
    progress: bool = False,
) -> Results:
    """Measures every combination of implementation, backend, group size and batch size.

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
    _check_flags(given)
    _check_importable(given["arch"])
    given = _plain(given)
    texts = {name: _text(name, value) for name, value in given.items() if name not in FLAGS}
    flags = {name: given[name] for name in FLAGS}
    make_importable(given["arch"])
    typed = {**texts, **flags}
    options = parse(SweepOptions(**{one.name: typed[one.name] for one in fields(SweepOptions)}))
    from dpbench.cli.sweep_preparation import SweepRequest, prepare

    request = SweepRequest(
        options=options,
        name=texts["name"],
        results_dir=Path(texts["results_dir"] or ""),
        data_dir=None if texts["data_dir"] is None else Path(texts["data_dir"]),
        resume=flags["resume"],
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
            return Results(sweep=prepare(request).measure(), said=said)
        except Interrupted as error:
            if error.signal_number != SIGINT:
                raise
            raise KeyboardInterrupt(str(error)) from None


def command(given: dict[str, Any]) -> list[str]:
    """What to type after "dpbench" for the same sweep; options at their default are left out."""
    words = ["sweep"]
    for name, parameter in inspect.signature(sweep).parameters.items():
        value, option = given[name], OPTION_OF.get(name, f"--{name.replace('_', '-')}")
        if name == "progress" or _text(name, value) == _text(name, parameter.default):
            continue
        words += [option] if name in FLAGS else [option, _text(name, value) or ""]
    return words


def _text(name: str, value: Any) -> str | None:
    """How the value is typed on the command line; None for an option that is left out."""
    if value is None:
        return None
    if isinstance(value, PathLike):
        return str(fspath(value))
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value)
    listed = ",".join(map(str, value))
    return f"{listed}," if name == "gpus" and len(value) == 1 else listed


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """What a shell could have typed: sequences in place of arrays and generators.

    Raises UsageError for what has no order or is no list of names or numbers, and for a None
    that is no default.
    """
    defaults = {name: one.default for name, one in inspect.signature(sweep).parameters.items()}
    for name, value in given.items():
        if value is None and defaults[name] is not None:
            raise UsageError(f"{name}: expected {_expected(defaults[name])}, got None")
        if isinstance(value, (bytes, bytearray, Mapping, Set)):
            raise UsageError(
                f"{name}: expected text, a number or a list, got {type(value).__name__}"
            )
    if not str(given["results_dir"]):
        raise UsageError("results_dir: expected the name of a folder, got ''")
    return {name: _listed(name, value) for name, value in given.items()}


def _expected(default: object) -> str:
    return "a list" if isinstance(default, tuple) else f"a value such as {default!r}"


def _listed(name: str, value: Any) -> Any:
    if isinstance(value, (str, PathLike)) or not _is_iterable(value):
        return value
    items = list(value)
    for item in items:
        if _is_iterable(item) and not isinstance(item, str):
            raise UsageError(f"{name}: expected one list, got {item!r} in a list")
        if isinstance(item, str) and "," in item:
            raise UsageError(f"{name}: expected a name or a number in each item, got {item!r}")
    return items


def _is_iterable(value: object) -> bool:
    """An array without dimensions has the method, and is one number."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0


def _check_flags(given: dict[str, Any]) -> None:
    for name in FLAGS:
        if not isinstance(given[name], bool):
            raise UsageError(f"{name}: expected True or False, got {given[name]!r}")


def _check_importable(arch: object) -> None:
    """Ranks are processes of their own, that know nothing of what was defined here."""
    if not isinstance(arch, str):
        raise UsageError(
            f"arch: expected a name, or 'package.module:factory', got {type(arch).__name__}"
        )
    if arch.startswith(("__main__:", "__mp_main__:")):
        raise UsageError(
            f"arch {arch!r}: ranks are processes of their own and cannot import what was defined "
            "in a script or a notebook; put it into a module, as in 'my_models:Net'"
        )
