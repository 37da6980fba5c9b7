"""`dpbench.sweep`: the command of the same name, called from Python."""

from __future__ import annotations

from typing import Any

from dpbench.api import host_program
from dpbench.api.arguments import (
    PROGRESS,
    check_flags,
    check_folder,
    check_importable,
    defaults_of,
    document,
    equivalent_command,
    listed_arguments,
    named,
    spellings_of,
)
from dpbench.api.results import Results
from dpbench.architecture import make_importable
from dpbench.run import presets
from dpbench.run.option_layers import merged, read_layer
from dpbench.run.sweep.checks import parse_sweep_options
from dpbench.run.sweep.options import SweepOptions
from dpbench.specs.settings import AUTO, as_typed, from_values

CALL_FLAGS = {
    "report": "Write the tables and the page that the command writes, with charts unless they are "
    "left out.",
    "progress": PROGRESS,
}


def sweep(**options: Any) -> Results:
    """Measure every combination of implementation, backend, group size, batch size and settings.

    The arguments are the options of `dpbench sweep`, with the same names, defaults and checks;
    `batch_size` and `batch_sizes` are the same. A comma-separated list there may be a list, an
    array or a generator here, and a number a number (`gpus`: 2 is a count, [0, 1] are ids), but
    `precision` is text, as in "5%". Other arguments override those of a `preset`. Records go into a
    folder of their own in `results_dir` as they come; without `name` it is called by the time and
    `arch`.

    Raises UsageError for an impossible option, StoreError for a folder, and DataError for data. A
    trial that fails is a row with a status and a reason. Ctrl-C is a KeyboardInterrupt that says
    how to go on: what was measured is stored.
    """
    typed = named(sweep, options, spellings_of(SweepOptions))
    preset = typed.pop("preset", None)
    below = {} if preset is None else read_layer(presets.find(preset), SweepOptions)
    return _measure(defaults_of(sweep) | merged(SweepOptions, [below, typed]))


document(sweep, SweepOptions, flags=CALL_FLAGS)


def _measure(given: dict[str, Any]) -> Results:
    check_flags(given, SweepOptions)
    given = listed_arguments(given, sweep)
    check_importable(given["arch"], several=True)
    if given["data"] not in (None, AUTO):
        check_importable(given["data"], "data")
    check_folder("results_dir", given["results_dir"])
    dataset = None if given["data"] is AUTO else given["data"]
    make_importable(as_typed(given["arch"]), given["step"], dataset)
    notes: list[str] = []
    values = {**given, "quiet": not given["progress"]}
    parsed = parse_sweep_options(from_values(SweepOptions, values, notes), notes)
    from dpbench.run.sweep.preparation import SweepRequest, find_place, prepare

    command = equivalent_command(given, sweep, SweepOptions)
    request = SweepRequest(parsed=parsed, command=command, embedded=True)
    with (
        host_program.alone(),
        host_program.listening(progress=given["progress"]) as said,
    ):
        stored = prepare(request, find_place(request)).measure()
    results = Results(sweep=stored, said=said)
    if given["report"]:
        results.write_report(charts=given["charts"])
    return results
