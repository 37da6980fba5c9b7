"""`dpbench init`: a file to put one's own model into."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpbench.errors import UsageError

TEMPLATE = Path(__file__).with_name("model_template.py")
DEFAULT = Path("my_model.py")
FACTORY = "make"
UNNAMEABLE = '"\\:'
"""Signs that the text of the file, or --arch, would read as something else."""
_EXAMPLE = re.compile(r"my_model\.py:\S+")
"""As the template names itself in its commands."""


def init(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist yet.")
    ] = DEFAULT,
) -> None:
    """Write a file with a model, a batch and a loss that dpbench can run: yours to change."""
    if file.suffix != ".py":
        raise UsageError(f"FILE: got {str(file)!r}, expected a name that ends in .py")
    if not str(file).isprintable() or any(sign in str(file) for sign in UNNAMEABLE):
        raise UsageError(f"FILE: got {str(file)!r}, expected a name without quotes, \\ and :")
    if not file.parent.is_dir():
        raise UsageError(f"FILE: got {file}, but there is no folder {file.parent}; make it first")
    text = _EXAMPLE.sub(
        lambda example: shlex.quote(example[0].replace(str(DEFAULT), str(file))),
        TEMPLATE.read_text(encoding="utf-8"),
    )
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise UsageError(f"{file} exists already and is left as it is; name another FILE") from None
    typer.echo(
        f"{file} written. Run it: dpbench sweep --arch {shlex.quote(f'{file}:{FACTORY}')} --gpus 2"
    )
