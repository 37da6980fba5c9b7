"""`dpbench.sweep`: the command of the same name, called from Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dpbench.api import host_program
from dpbench.api.results import Results
from dpbench.errors import StoreError, UsageError
from dpbench.options.bridge import Options, describe, keyed, option_names, options_of
from dpbench.options.sweep import SweepOptions

PROGRESS = {"progress": (True, "Print progress and notes on stderr. Default: True.")}
OPTION = re.compile(r"(?<![\w./-])(--[a-z][a-z-]*)(?![\w./])(:?)")
"""An option in a message; not the "--" within a path."""
CALL_FLAGS = {
    "report": (False, "Write the tables and the page that the command writes. Default: False."),
    **PROGRESS,
}


def sweep(arch: Any = None, **options: Any) -> Results:
    """Benchmark implementations, backends, group sizes and batch sizes, like `dpbench sweep`.

        >>> results = dpbench.sweep("mlp", batch_sizes=[32, 64], gpus=2)
        >>> results.rows[["implementation", "group_size", "speedup"]]

    Every option that affects the measurement is an argument: `--batch-sizes 32,64` is
    `batch_sizes=[32, 64]`. Omit an argument, or pass None, for its default or the value of the
    `preset`. `arch` is a name, because each rank imports the model: "mlp", "my_model.py:make" or
    "my_package.models:make".
    Each trial is stored in a folder in `results_dir` as soon as it ends.
    """
    report, progress = take_flags(options, CALL_FLAGS)
    given = keyed(SweepOptions, "dpbench.sweep", {"arch": arch, **options}, of_python=True)
    for name in ("arch", "data", "step"):
        check_importable(given.get(name), name)
    with (
        named_as_arguments(SweepOptions),
        host_program.alone(),
        host_program.listening(progress=progress) as said,
    ):
        results = _measure(given, quiet=not progress, said=said)
    if report:
        results.write_report(charts=given.get("charts", True))
    return results


describe(
    sweep,
    SweepOptions,
    flags=CALL_FLAGS,
    end="""\
Returns:
    The results, as `dpbench.load` reads them from the folder. A failed trial does not raise: its
    row has a status and a reason.

Raises:
    UsageError: An argument is invalid.
    StoreError: The results folder cannot be used.
    DataError: The dataset cannot be used.
    KeyboardInterrupt: After Ctrl-C; finished trials are stored, and the message says how to resume.
""",
)


def _measure(given: dict[str, Any], *, quiet: bool, said: list[str]) -> Results:
    from dpbench.run.sweep.resume import read_options

    options = read_options({**given, "quiet": quiet})
    from dpbench.run.sweep.preparation import measure_sweep

    return Results(sweep=measure_sweep(options, embedded=True), said=said)


@contextmanager
def named_as_arguments(model: type[Options]) -> Iterator[None]:
    """Errors in the block name options as a call does: `batch_sizes` instead of --batch-sizes, and
    `oversubscribe=True` instead of --oversubscribe."""
    fields = {
        name.partition("/")[0]: field
        for field, declared in options_of(model).items()
        for name in option_names(declared, field)
    }

    def as_argument(found: re.Match[str]) -> str:
        typed, colon = found.groups()
        field = fields.get(typed, typed)
        is_flag = typed in fields and model.model_fields[field].annotation is bool
        return f"{field}=True" if is_flag and not colon else f"{field}{colon}"

    try:
        yield
    except (StoreError, UsageError) as error:
        error.args = (OPTION.sub(as_argument, str(error)),)
        raise


def take_flags(options: dict[str, Any], flags: Mapping[str, tuple[bool, str]]) -> list[bool]:
    """Remove the flags of a call from its options and return their values, or the defaults.

    Raises UsageError for a value that is not a bool.
    """
    taken = {name: options.pop(name, default) for name, (default, _) in flags.items()}
    for name, value in taken.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name}: expected True or False, got {value!r}")
    return [*taken.values()]


def check_importable(named: object, what: str) -> None:
    """Raises UsageError for what ranks, which are processes of their own, cannot import."""
    for one in named if isinstance(named, list | tuple) else [named]:
        if one is not None and not isinstance(one, str):
            raise UsageError(
                f"{what}: got a value of type {type(one).__name__}; expected a name that ranks can "
                "import, as in 'my_model.py:make' or 'my_package.models:make'"
            )
        if one is not None and one.startswith(("__main__:", "__mp_main__:")):
            raise UsageError(
                f"{what} {one!r}: ranks are processes of their own and cannot import what was "
                "defined in a script or a notebook; put it into a file, as in 'my_model.py:make'"
            )
