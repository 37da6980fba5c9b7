"""What docs/launch.md says about starting processes by hand, done in two shells."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, environment
from tests.ports import free_port

TEXT = (ROOT / "docs" / "launch.md").read_text()


@pytest.mark.parametrize(
    "visible", [("", ""), pytest.param(("0", "1"), marks=pytest.mark.gpu(2))], ids=["cpu", "cuda"]
)
def test_two_shells_make_one_group(tmp_path: Path, visible: tuple[str, str]) -> None:
    (program,) = re.findall(r"```python\n(# hello\.py\n.*?)```", TEXT, re.DOTALL)
    (tmp_path / "hello.py").write_text(program)
    lines = re.findall(r"^RANK=.* python hello\.py$", TEXT, re.MULTILINE)
    assert len(lines) == 2
    port = str(free_port())
    shells = [
        subprocess.Popen(
            line.replace("29500", port).replace(" python ", f" {sys.executable} "),
            shell=True,
            cwd=tmp_path,
            env=environment() | {"CUDA_VISIBLE_DEVICES": gpus},
            stdout=subprocess.PIPE,
            text=True,
        )
        for line, gpus in zip(lines, visible, strict=True)
    ]
    printed = [shell.communicate(timeout=100)[0] for shell in shells]
    assert printed == ["rank 0 of 2: 2 are here\n", "rank 1 of 2: 2 are here\n"]
