"""`dpbench fit`: the law behind a scaling curve, and what more replicas would give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.errors import UsageError
from dpbench.messages import say, warn
from dpbench.run.results import is_table
from dpbench.values import comma_list, positive_int

if TYPE_CHECKING:
    from dpbench.analysis.laws.series import Series
    from dpbench.analysis.laws.study import Wanted


def fit(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="Results folder, or a CSV file of group sizes and speeds."
        ),
    ],
    train_up_to: Annotated[
        str | None,
        typer.Option(
            "--train-up-to",
            metavar="N",
            help="Fit to group sizes up to this one, and test the prediction on the others.",
        ),
    ] = None,
    predict: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            show_default="the withheld sizes; else 2 and 4 times the largest",
            help="Group sizes to predict.",
        ),
    ] = None,
    basis: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            show_default="const,ring,log; in one process const,lin",
            help="Terms of the step time: const, wrap, ring, log, lin.",
        ),
    ] = None,
    baseline: Annotated[
        str, typer.Option(metavar="N", help="Group size that efficiencies refer to.")
    ] = "1",
    residuals: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV file of hold-out errors to calibrate the band on.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a row per predicted group size as JSON.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print the laws and how to read them.")
    ] = False,
) -> None:
    """Fit a scaling law and predict the speed of other group sizes.

    dpbench fit results/demo --predict 4,8

    dpbench fit results/published/weak_scaling.csv --train-up-to 8 --predict 16,64
    """
    notes: list[str] = []
    limit = None if train_up_to is None else positive_int("--train-up-to", train_up_to)
    sizes = None
    if predict is not None:
        sizes = tuple(comma_list("--predict", predict, positive_int, notes))
    base = positive_int("--baseline", baseline)
    say(*notes)
    from dpbench.analysis.laws.band import misspecification_from
    from dpbench.analysis.laws.basis import parse_basis
    from dpbench.analysis.laws.study import Wanted

    wanted = Wanted(
        train_up_to=limit,
        predict=sizes,
        basis=None if basis is None else parse_basis(basis),
        misspecification=None if residuals is None else misspecification_from(residuals),
        baseline=base,
    )
    _show(path, _read(path), wanted, json=json, verbose=verbose)


def _read(path: Path) -> Sequence[Series]:
    if is_table(path):
        from dpbench.analysis.laws.series_file import read_series

        return read_series(path)
    if path.is_file():
        raise UsageError(f"{path}: expected a results folder or a .csv file")
    from dpbench.analysis.laws.series import series_of
    from dpbench.store import load

    stored = load(path)
    warn(*stored.warnings)
    found = series_of(stored.records, stored.environments)
    if not found:
        raise UsageError(f"{path}: no trial has a speed yet, so there is nothing to fit")
    return found


def _show(
    path: Path, series: Sequence[Series], wanted: Wanted, *, json: bool, verbose: bool
) -> None:
    from dpbench.analysis.laws.study import study_all
    from dpbench.report.prediction.fit import answer

    if path.is_dir() and all(len(one.points) < 2 for one in series):
        sizes = sorted({n for one in series for n in one.group_sizes})
        raise UsageError(
            f"{path}: a fit takes at least two group sizes of a series, got one of each "
            f"({', '.join(map(str, sizes))}); measure more, e.g. dpbench sweep --group-sizes 1,2,4"
        )
    try:
        studies, left_out = study_all(series, wanted)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    typer.echo(answer(studies, verbose=verbose).render(as_json=json), nl=False)
    for reason in left_out:
        say(f"left out: {reason}")
