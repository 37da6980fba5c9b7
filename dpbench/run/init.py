"""What `dpbench init` writes: a template for a model of the user's, or the results that ship."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from dpbench import shipped
from dpbench.errors import UsageError
from dpbench.options.setup import InitOptions

MODEL_TEMPLATE = Path(__file__).with_name("model_template.py")
DEFAULT_FILE = Path("my_model.py")
COPY_FOLDER = Path("results")


def init(options: InitOptions) -> str:
    """Write what is wanted, and say what to do with it; raises UsageError if it cannot."""
    if not options.example:
        return write_template(options.file or DEFAULT_FILE)
    if options.file is not None:
        raise UsageError(f"--example takes no FILE; got {str(options.file)!r}")
    return copy_shipped()


def write_template(file: Path) -> str:
    """Write the template of a model into a new file, and say how to run it. Raises UsageError for
    another kind of name, or a file that exists."""
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
    import torch  # here, as --example need not wait for it

    # On CPU cores the default backend is gloo alone, and shm is mostly faster.
    backends = "" if torch.cuda.device_count() else " --backends gloo,shm"
    return f"{file} written. Run it: dpbench sweep --arch {file}:make --gpus 2{backends}\n"


def copy_shipped() -> str:
    """Copy each shipped folder to results/, and say what to do with them. Raises UsageError if one
    is there already."""
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
