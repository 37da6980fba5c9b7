"""A reader that leaves changes neither what a command does nor its exit status."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from dpbench.cli.streams import forgive_readers_that_leave
forgive_readers_that_leave()
for stream in (sys.stdout, sys.stderr):
    for _ in range(3):
        print("é" * 100_000, file=stream)
        stream.flush()
sys.exit(3)
"""


@pytest.mark.parametrize("leaving", ["stdout", "stderr"])
def test_the_exit_status_stands_and_the_other_stream_gets_everything(leaving: str) -> None:
    read, write = os.pipe()
    os.close(read)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, leaving: write}
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", CODE], check=False, **streams)
    os.close(write)
    assert done.returncode == 3
    heard = done.stderr if leaving == "stdout" else done.stdout
    assert heard.decode() == ("é" * 100_000 + "\n") * 3
