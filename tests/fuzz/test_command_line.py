"""Command lines of real options and hostile values: a status and a line, never a traceback."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.cli.app import commands, run
from dpbench.report import page
from dpbench.run.init import MODEL_TEMPLATE
from dpbench.specs.traits import IMPLEMENTATIONS
from tests.launch import synthetic

pytestmark = pytest.mark.full

COMMANDS: dict[str, Any] = commands().commands
SWEEP = (
    "sweep --quiet --no-charts --results-dir . --name good --implementations dp,ddp,local-sgd"
    " --backends gloo --batch-sizes 8 --gpus 2 --oversubscribe --steps 12 --repetitions 4"
    " --sync-every 2 --bucket-cap-mb 5 --lr-scaling sqrt"
)
"""Small, but with everything in it that a synthetic record can hold."""
CONFIG = "batch-sizes = [8]\ndtypes = ['f32']\n"
FILES = {
    "file": "a file",
    "published.csv": "group_size,images_per_second,backend,batch_size\n1,100,gloo,32\n"
    "2,190,gloo,32\n",
    "sweep.toml": CONFIG,
    "damaged.toml": CONFIG[:-8],
    "sweep.yaml": "batch-sizes: [8]\ncomm-hook: none,bf16\n",
    "model.py": f"""{MODEL_TEMPLATE.read_text()}

def step(*arguments):
    raise RuntimeError("two\\nlines")
""",
}
STATUSES = {0, 1, 2, 3, 4, 5, 6}
REFUSED = (2, 5)
HOSTILE = (
    *("0", "-1", "1.5", "1_0", "٣", "nan", "inf", "9" * 30, ",", "1,,2", "1\n", "", " ", "--"),
    *("\x1b[31m", "\udc80", "[bold]", "{}", "x" * 300, "a\nb", "3%", "100%", "0.5%", "1m", "0s"),
)
LIKELY = (
    *("1", "2", "1,2", "8", "auto", "max", "gloo", "shm", "f32,bf16", "sgd", "mlp", "digits"),
    *("good", "other", "damaged", "empty", "absent", "file", "published.csv", "sweep.toml"),
    *("good:implementation=ddp", "good:x=y", "model.py:make", "model.py:step", "file:build"),
    *("implementation=dp group_size=2", "efficiency", "csv", "quick", "5%", *IMPLEMENTATIONS),
)
ALWAYS = {
    "train": ["--dry-run"],
    "report": ["--no-charts"],
    "comm": ["--no-charts"],
    "sweep": ["--batch-sizes", "8", "--repetitions", "1", "--group-sizes", "1,2", "--no-charts"],
    "doctor": ["--nonsense"],
}
"""What keeps a command from starting processes, drawing charts or taking long."""
LEFT_OUT = {"--charts", "--open", "--repetitions", "--time-limit"}
values = st.sampled_from(LIKELY) | st.sampled_from(HOSTILE)


def command_line(name: str) -> st.SearchStrategy[list[str]]:
    """A command with some of its options, each with any value, and a folder or none."""

    def with_value(option: Any) -> st.SearchStrategy[list[str]]:
        names = st.sampled_from([*option.opts, *option.secondary_opts])
        return (
            names.map(lambda one: [one]) if option.is_flag else st.tuples(names, values).map(list)
        )

    params = COMMANDS[name].params
    options = [
        with_value(one)
        for one in params
        if one.param_type_name == "option" and not LEFT_OUT & {*one.opts}
    ]
    places = sum(one.param_type_name == "argument" for one in params)
    words = st.lists(st.one_of(options), max_size=4) if options else st.just([])
    return st.tuples(st.lists(values, max_size=places), words).map(
        lambda parts: [
            name,
            *ALWAYS.get(name, []),
            *parts[0],
            *(w for one in parts[1] for w in one),
        ]
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, _soon_over: None) -> Path:
    """A good sweep twice, a damaged one, an empty folder, and files."""
    folder = tmp_path_factory.mktemp("command_line")
    with contextlib.chdir(folder):
        assert run(SWEEP.split()) == 0
        for name in ("other", "damaged"):
            shutil.copytree("good", name)
        trials = Path("damaged", "trials.jsonl")
        trials.write_bytes(trials.read_bytes()[:-30])
        Path("empty").mkdir()
        for name, text in FILES.items():
            Path(name).write_text(text)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _soon_over() -> Iterator[None]:
    """Nothing is measured for long, no chart is drawn, and no folder stays importable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "CHARTS", {})
        patch.setattr(sys, "path", [*sys.path])
        with synthetic.in_use():
            yield


@pytest.mark.usefixtures("signals")
@settings(max_examples=120, derandomize=True)
@given(arguments=st.sampled_from(sorted(COMMANDS)).flatmap(command_line))
def test_no_command_line_ends_with_a_traceback(prepared: Path, arguments: list[str]) -> None:
    """It also writes nowhere but below its working directory."""
    folder = prepared.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(prepared, folder)
    before = sorted(prepared.parent.iterdir())
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = run(arguments)
    assert status in STATUSES
    assert "Traceback" not in err.getvalue()
    if status in REFUSED:
        assert err.getvalue().splitlines()[-1].startswith("dpbench: "), err.getvalue()
    assert sorted(prepared.parent.iterdir()) == before
