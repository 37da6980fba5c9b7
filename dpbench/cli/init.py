"""`dpbench init`: a file to put your own model into, or the results that ship as an example."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from dpbench import shipped
from dpbench.errors import UsageError

TEMPLATE = Path(__file__).with_name("model_template.py")
DEFAULT = Path("my_model.py")
FACTORY = "make"
COPIES = Path("results")


def init(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write; it must not exist yet.")
    ] = DEFAULT,
    example: Annotated[
        bool,
        typer.Option(
            "--example", help="Copy the example sweep and the published tables to results/."
        ),
    ] = False,
) -> None:
    """Write a template file for a model of your own."""
    if example:
        if file != DEFAULT:
            raise UsageError(f"--example takes no FILE; got {str(file)!r}")
        _copy_shipped()
        return
    if not re.fullmatch(r"[\w./-]+\.py", str(file)):
        raise UsageError(
            f"FILE: got {str(file)!r}, expected a name of letters, digits, _, - and . that ends in "
            ".py"
        )
    if file.exists():
        raise UsageError(f"{file} exists, and stays as it is; expected a new name")
    with file.open("x", encoding="utf-8") as opened:  # "cannot use FILE" if that fails
        opened.write(TEMPLATE.read_text(encoding="utf-8").replace(str(DEFAULT), str(file)))
    typer.echo(f"{file} written. Run it: dpbench sweep --arch {file}:{FACTORY} --gpus 2")


def _copy_shipped() -> None:
    """Copies each shipped folder to results/; raises UsageError if one is there already."""
    folders = [COPIES / "examples", COPIES / "published"]
    if there := [folder for folder in folders if folder.exists() or folder.is_symlink()]:
        raise UsageError(
            f"--example: {there[0]} already exists; remove it or work in another folder"
        )
    for folder in folders:
        shutil.copytree(
            shipped.RESULTS / folder.name, folder, ignore=shutil.ignore_patterns("report", "logs")
        )
    for sweep in sorted((COPIES / "examples").iterdir()):
        typer.echo(f"{sweep} written. Look at it: dpbench report {sweep}")
    typer.echo(f"{COPIES / 'published'} written: tables for dpbench report and dpbench project")
