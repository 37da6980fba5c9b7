"""The command that repeats a sweep, as a shell reads it."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from dpbench.records.environment import capture
from dpbench.report.page.environment import command_of, facts_of, quoted
from dpbench.specs import WorkloadSpec
from tests.analysis.builders import run, trial
from tests.report.sample import subject

NASTY = [
    "plain",
    "two words",
    "it's",
    '"$HOME"',
    "`id`",
    "a\nb",
    "\x1b[31m'\\",
    "é\u202e",
    ";&|*",
    "",
]


def test_a_shell_reads_back_what_was_quoted() -> None:
    line = " ".join(quoted(word) for word in NASTY)
    assert line.isprintable()
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True
    ).stdout
    assert printed.decode().split("\0")[:-1] == NASTY


def test_the_folder_is_another_one_and_nothing_is_resumed() -> None:
    words = ["sweep", "--name=x", "--resume", "--steps", "5"]
    assert command_of(subject([], command=words)) == "dpbench sweep --name=x-again --steps 5"
    assert command_of(subject([], command=["sweep"])) == "dpbench sweep"


def command_with(*variables: tuple[str, str]) -> str:
    environment = replace(capture(), variables=variables)
    return command_of(subject([run(trial(), 100.0)], environments={"e0": environment}))


def test_variables_that_change_a_result_stand_before_it() -> None:
    said = command_with(("OMP_NUM_THREADS", "2"), ("NCCL_ALGO", "a b"))
    assert said == "OMP_NUM_THREADS=2 NCCL_ALGO='a b' dpbench sweep"


def test_a_variable_that_could_run_something_is_named_and_not_set() -> None:
    said = command_with(
        ("LD_PRELOAD", "/tmp/evil.so"),
        ("NCCL_NET_PLUGIN", "evil"),
        ("NCCL_DEBUG_FILE", "/home/me/.bashrc"),
        ("OMP_NUM_THREADS", "$(touch x)"),
        ("OMP; touch x; X", "1"),
        ("-S touch x\ntouch y", "3"),
    )
    assert said == (
        "OMP_NUM_THREADS='$(touch x)' dpbench sweep "
        "# without LD_PRELOAD, NCCL_NET_PLUGIN, NCCL_DEBUG_FILE, 2 more"
    )


@pytest.mark.parametrize(
    "words", [[], ["launch", "--no-python", "rm"], ["dpbench", "sweep"], ["--help"]]
)
def test_a_command_that_measures_nothing_is_not_repeated(words: list[str]) -> None:
    assert command_of(subject([], command=words)) == "# the command is not known"


def test_a_check_is_repeated_as_it_was_typed() -> None:
    words = ["check", "--against", "torch-ddp"]
    assert command_of(subject([], command=words)) == "dpbench check --against torch-ddp"


def test_a_page_says_which_architectures_were_trained_on_what() -> None:
    workloads = {
        "mlp": WorkloadSpec(architecture="mlp", dataset="digits"),
        "mnist_cnn": WorkloadSpec(architecture="mnist_cnn", dataset="digits"),
        "a.py:f": WorkloadSpec(architecture="a.py:f", dataset="synthetic", files_sha256="ab" * 32),
    }
    first, *more = workloads.values()
    found = subject(
        [],
        workload=first,
        more_workloads=tuple(more),
        axes={"architecture": tuple(workloads), "scaling": ("weak", "strong")},
    )
    facts = dict(facts_of(found))
    assert facts["Workload"] == "mlp and mnist_cnn on digits; a.py:f on synthetic"
    assert facts["Own files"] == "SHA-256 abababababab…"
    assert facts["Scaling"] == "weak: the batch is per replica; strong: the batch is global"
