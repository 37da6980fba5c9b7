"""Writes the expected outputs again; read the difference before a commit."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden.cases import CASES, PREPARED
from tests.golden.outputs import EXPECTED, prepare, transcript


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        prepare(folder, PREPARED)
        for name in names or CASES:
            (EXPECTED / f"{name}.txt").write_text(transcript(CASES[name], folder))


if __name__ == "__main__":
    main(sys.argv[1:])
