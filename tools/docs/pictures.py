"""The pictures of the documentation: a chart and the page, of the example that its tables show."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import subprocess
from pathlib import Path

from dpbench.cli.app import run
from tools.docs import ROOT

IMAGES = ROOT / "docs" / "images"
EXAMPLE = "results/examples/two-cores"
ORIGIN = IMAGES / "made-from.sha256"
"""The records that the pictures show, as sha256sum writes it. Without it they are drawn anew."""
BROWSER = "chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1200,1150"


def draw() -> None:
    """Draw them inside `blocks.sandbox()`, if they are not those of the example."""
    if ORIGIN.exists() and ORIGIN.read_text() == origin():
        return
    with contextlib.redirect_stdout(io.StringIO()):
        chart = ("plot", "throughput", EXAMPLE, "--format", "png", "--output", "chart")
        assert run(chart) == 0
        assert run(("report", EXAMPLE)) == 0
    page = Path(EXAMPLE, "report", "index.html").resolve().as_uri()
    photograph = [*BROWSER.split(), "--screenshot=page.png", page]
    subprocess.run(photograph, check=True, capture_output=True, timeout=60)
    shutil.copyfile("chart/throughput.png", IMAGES / "throughput.png")
    shutil.copyfile("page.png", IMAGES / "report.png")
    ORIGIN.write_text(origin())
    print("changed: docs/images; look at the pictures")


def origin() -> str:
    """What `ORIGIN` holds while the pictures are those of the example."""
    records = f"{EXAMPLE}/trials.jsonl"
    return f"{hashlib.sha256((ROOT / records).read_bytes()).hexdigest()}  {records}\n"
