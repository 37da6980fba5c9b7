"""The commands before the first measurement: `list`, `doctor` and `init`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench import shipped
from dpbench.cli.signature import command
from dpbench.errors import UsageError
from dpbench.options.setup import DoctorOptions, InitOptions, ListOptions

if TYPE_CHECKING:
    from dpbench.report.answer import Answer

MODEL_TEMPLATE = Path(__file__).with_name("model_template.py")
DEFAULT_FILE = Path("my_model.py")
TEMPLATE_FACTORY = "make"
COPY_FOLDER = Path("results")


@command(ListOptions)
def listing(options: ListOptions) -> Answer:
    """List models, implementations, backends and datasets.

    dpbench list architectures
    """
    from dpbench.run.setup import list_names

    return list_names(options.kind)


@command(DoctorOptions)
def doctor(options: DoctorOptions) -> Answer:
    """Check the machine, the versions and each backend.

    Exit status: 0; 1 if a backend that should work here fails, or there are fewer
    usable GPUs than --gpus; 2 usage.
    """
    from dpbench.run.setup import examine

    return examine(options.gpus)


@command(InitOptions)
def init(options: InitOptions) -> str:
    """Write a template file for a model of your own."""
    if options.example:
        if options.file is not None:
            raise UsageError(f"--example takes no FILE; got {str(options.file)!r}")
        return _copy_shipped()
    file = options.file or DEFAULT_FILE
    if not re.fullmatch(r"[\w./-]+\.py", str(file)):
        raise UsageError(
            f"FILE: got {str(file)!r}, expected a name of letters, digits, _, - and . that ends in "
            ".py"
        )
    if file.exists():
        raise UsageError(f"{file} exists, and stays as it is; expected a new name")
    text = MODEL_TEMPLATE.read_text(encoding="utf-8").replace(str(DEFAULT_FILE), str(file))
    with file.open("x", encoding="utf-8") as opened:  # "cannot use FILE" if that fails
        opened.write(text)
    return f"{file} written. Run it: dpbench sweep --arch {file}:{TEMPLATE_FACTORY} --gpus 2\n"


def _copy_shipped() -> str:
    """Copies each shipped folder to results/, and says what to do with them; raises UsageError if
    one is there already."""
    folders = [COPY_FOLDER / "examples", COPY_FOLDER / "published"]
    if there := [folder for folder in folders if folder.exists() or folder.is_symlink()]:
        raise UsageError(
            f"--example: {there[0]} already exists; remove it or work in another folder"
        )
    for folder in folders:
        shutil.copytree(
            shipped.RESULTS / folder.name, folder, ignore=shutil.ignore_patterns("report", "logs")
        )
    sweeps = sorted((COPY_FOLDER / "examples").iterdir())
    looks = [f"{sweep} written. Look at it: dpbench report {sweep}\n" for sweep in sweeps]
    tables = f"{COPY_FOLDER / 'published'} written: tables for dpbench report and dpbench project\n"
    return "".join([*looks, tables])
