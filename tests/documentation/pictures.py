"""The pictures of the documentation: a chart and the page, of the example that its tables show."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from dpbench.cli.app import run
from tests.documentation import ROOT

IMAGES = ROOT / "docs" / "images"
EXAMPLE = "results/examples/two-cores"
CHART = IMAGES / "throughput.png"
PAGE = IMAGES / "report.png"
PAGE_SIZE = "1200,1150"
ORIGIN = IMAGES / "made-from.sha256"
"""As sha256sum writes it: the records that the pictures show."""


def draw() -> Iterator[str]:
    """Draws them inside `outputs.sandbox()`; yields the names of those that changed, or are left
    out as there is no chromium to see the page with."""
    _dpbench("plot", "throughput", EXAMPLE, "--format", "png", "--output", "chart")
    yield from _replace(CHART, Path("chart", "throughput.png"))
    browser = shutil.which("chromium")
    if browser is None:
        yield f"not {PAGE.relative_to(ROOT)}: chromium is not there"
        return
    _dpbench("report", EXAMPLE)
    _photograph(browser, Path(EXAMPLE, "report", "index.html").resolve(), Path("page.png"))
    yield from _replace(PAGE, Path("page.png"))
    ORIGIN.write_text(origin())


def origin() -> str:
    """What `ORIGIN` holds while the pictures are those of the example."""
    records = f"{EXAMPLE}/trials.jsonl"
    return f"{hashlib.sha256((ROOT / records).read_bytes()).hexdigest()}  {records}\n"


def _dpbench(*arguments: str) -> None:
    """Run a command that must succeed, without its output."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert run(arguments) == 0, arguments


def _photograph(browser: str, page: Path, image: Path) -> None:
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    subprocess.run(
        [browser, *options, f"--window-size={PAGE_SIZE}", f"--screenshot={image}", page.as_uri()],
        check=True,
        capture_output=True,
        timeout=60,
    )


def _replace(target: Path, fresh: Path) -> Iterator[str]:
    if not target.exists() or target.read_bytes() != fresh.read_bytes():
        shutil.copyfile(fresh, target)
        yield str(target.relative_to(ROOT))
