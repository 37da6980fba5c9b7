"""`dpbench.sweep`: the command of the same name, called from Python."""

from __future__ import annotations

from dataclasses import fields
from signal import SIGINT
from typing import Any

from dpbench.api import host_program
from dpbench.api.arguments import (
    bound,
    check_flags,
    check_folder,
    check_importable,
    plain,
    signature_of,
    spellings_of,
    words,
)
from dpbench.api.results import Results
from dpbench.architecture import make_importable
from dpbench.errors import Interrupted
from dpbench.messages import said_to, to_stderr
from dpbench.run.shared_options import NodeOptions
from dpbench.run.sweep.checks import parse
from dpbench.run.sweep.options import SweepOptions
from dpbench.settings import AUTO, from_values

ONLY_OF_THE_COMMAND = (
    *(
        "config",
        "preset",
        "show_config",
        "dry_run",
        "charts",
        "columns",
        "debug",
        "json_rows",
        "quiet",
    ),
    *(field.name for field in fields(NodeOptions)),
)
FLAGS = ("stop_after_failure", "oversubscribe", "resume", "synthetic", "progress")
OPTION_OF = {"synthetic": "--synthetic-launcher"}
"""Options with another spelling on the command line."""


def sweep(**options: Any) -> Results:
    """Measures every combination of implementation, backend, group size, batch size and settings.

    Options, names, defaults and checks are those of `dpbench sweep`, `batch_size` and `batch_sizes`
    alike; what is a comma-separated list
    there may be a list, an array or a generator, a number a number (`gpus`: 2 is a count, [0, 1]
    are ids). Records go into a folder of their own in `results_dir` as they come; without `name`
    its name is the time and `arch`, and a number where that is taken. No report is written. Prints
    nothing but, with `progress`, what the command prints on stderr. `synthetic`: starts nothing;
    numbers from a cost model, to try things out.

    Raises UsageError for an option that cannot be, StoreError for a folder, DataError for data.
    A trial that fails is a row with a status and a reason. Ctrl-C is a KeyboardInterrupt that
    says how to go on: what was measured is stored.
    """
    return _measure(bound(sweep, options, spellings_of(SweepOptions)))


sweep.__signature__ = signature_of(  # type: ignore[attr-defined]
    SweepOptions, leaving_out=ONLY_OF_THE_COMMAND
)


def _measure(given: dict[str, Any]) -> Results:
    check_flags(given, FLAGS)
    check_importable(given["arch"])
    if given["data"] not in (None, AUTO):
        check_importable(given["data"], "data")
    given = plain(given, sweep)
    check_folder("results_dir", given["results_dir"])
    make_importable(given["arch"], given["step"], None if given["data"] is AUTO else given["data"])
    notes: list[str] = []
    values = {**given, "quiet": not given["progress"]}
    parsed = parse(from_values(SweepOptions, values, notes), notes)
    from dpbench.run.sweep.preparation import SweepRequest, find_place, prepare

    request = SweepRequest(parsed=parsed, command=command(given), embedded=True)
    said: list[str] = []

    def listen(message: str) -> None:
        said.append(message)
        if given["progress"]:
            to_stderr(message)

    with host_program.alone(starts_ranks=not given["synthetic"]), said_to(listen):
        try:
            return Results(sweep=prepare(request, find_place(request)).measure(), said=said)
        except Interrupted as error:
            if error.signal_number != SIGINT:
                raise
            raise KeyboardInterrupt(str(error)) from None


def command(given: dict[str, Any]) -> list[str]:
    """Words to type after "dpbench" for the same sweep."""
    typed = words(given, sweep, flags=FLAGS, unsaid=("progress",), option_of=OPTION_OF)
    return ["sweep", *typed]
