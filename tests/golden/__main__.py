"""Writes the expected outputs again; read the difference before a commit."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden.outputs import EXPECTED, prepare, transcript


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        prepare(folder)
        for name in names or sorted(path.stem for path in EXPECTED.iterdir()):
            (EXPECTED / f"{name}.txt").write_text(transcript(name, folder))


if __name__ == "__main__":
    main(sys.argv[1:])
