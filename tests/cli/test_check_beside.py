"""`dpbench check` of two versions of a user's file: real processes, a real repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.errors import UsageError
from dpbench.run.gate.beside import Snapshot, write_snapshot
from dpbench.run.gate.side import Prepared, SidePlace, interpreter_of, start_side
from dpbench.specs import WorkloadSpec
from dpbench.store import load
from tests.cli.command import dpbench, environment

pytestmark = pytest.mark.slow

MODEL = """
import time
import torch
from torch import nn
from pause import SECONDS


class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(SECONDS)
        return super().forward(x)


def build():
    def batch(n, generator=None):
        return torch.randn(n, 4, generator=generator), torch.zeros(n, dtype=torch.long)

    return Slow(4, 2), batch, nn.functional.cross_entropy
"""
OPTIONS = (
    *("check", "--arch", "model.py:build", "--implementations", "ddp", "--gpus", "1", "--quiet"),
    *("--batch-sizes", "8", "--steps", "4", "--warmup", "1", "--tolerance", "50%"),
    *("--repetitions", "2", "--budget", "1s", "--name", "now"),
)
THREE_PASSES = ("--repetitions", "3")
"""Of two, a single disturbed run leaves one degree of freedom, which decides nothing."""
LIMIT_SECONDS = 280
Finished = subprocess.CompletedProcess[str]
Check = Callable[..., Finished]


def git(*arguments: str, cwd: Path) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", *author, *arguments]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def write(folder: Path, seconds: float) -> None:
    (folder / "pause.py").write_text(f"SECONDS = {seconds}\n")


def make_project(place: Path) -> Path:
    """A repository with the model in a folder of its own, and one commit."""
    folder = place / "repository" / "package"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    write(folder, 0.03)
    git("init", "-q", cwd=folder.parent)
    git("add", ".", cwd=folder.parent)
    git("commit", "-qm", "one", cwd=folder.parent)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.fixture
def check(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    signals: None,
) -> Check:
    """The command in this process, which measures nothing: each side has one of its own."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, value in environment().items():
        monkeypatch.setenv(name, value)

    def checked(*options: str) -> Finished:
        status = run([*options])
        return Finished(options, status, *capfd.readouterr())

    return checked


@pytest.mark.timeout(LIMIT_SECONDS)
def test_a_change_that_makes_steps_longer_is_caught_against_the_revision_before(
    project: Path, check: Check
) -> None:
    write(project, 0.3)
    done = check(*OPTIONS, *THREE_PASSES, "--against-ref", "HEAD")
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stdout.startswith("regressed: 1 of 1 row")
    assert "of the working directory (candidate) against HEAD (baseline)" in done.stdout
    assert f"HEAD is commit {git('rev-parse', 'HEAD', cwd=project)[:12]}" in done.stderr
    now, before = (load(project / "results" / name) for name in ("now", "now-baseline"))
    assert len(now.records) == len(before.records) == 3
    assert now.spec.workload.files_sha256 != before.spec.workload.files_sha256
    # In turn: the baseline goes first in one pass, and last in the next.
    both = zip(before.records, now.records, strict=True)
    first, second, _ = ((one.started_utc, two.started_utc) for one, two in both)
    assert first[0] < first[1] < second[1] < second[0]
    assert git("worktree", "list", cwd=project).count("\n") == 1


@pytest.mark.timeout(LIMIT_SECONDS)
def test_another_architecture_is_compared_although_its_name_differs(
    project: Path, check: Check
) -> None:
    slower = MODEL.replace("time.sleep(SECONDS)", "time.sleep(10 * SECONDS)")
    (project / "other.py").write_text(slower)
    done = check(*OPTIONS, *THREE_PASSES, "--against-arch", "other.py:build")
    assert done.returncode == 0, done.stderr
    assert "(candidate) against other.py:build (baseline)" in done.stdout
    assert done.stdout.startswith("pass: 1 row")
    assert "faster" in done.stdout
    baseline = load(project / "results" / "now-baseline").spec.workload
    assert baseline.architecture == "other.py:build"


@pytest.fixture
def installed(project: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """A package in src/ that is found from anywhere, as `pip install --editable` has it; and what
    it was before a change."""
    package = project / "src" / "layers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("DEPTH = 1\n")
    (project / "model.py").write_text(f"import layers\n{MODEL}")
    git("add", ".", cwd=project)
    git("commit", "-qm", "two", cwd=project)
    (package / "__init__.py").write_text("DEPTH = 2\n")
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(package.parent)
    folder = project.parent.parent / "then"
    folder.mkdir()
    return write_snapshot("HEAD", folder, "--against-ref")


def prepared(then: Snapshot) -> Prepared:
    """What the side of a revision loads."""
    place = SidePlace(
        label="HEAD", directory=then.working_directory, root=then.root, stands_for=then.repository
    )
    with start_side(place) as process:
        return process.prepare(
            WorkloadSpec(architecture="model.py:build", dataset="synthetic"), None, 8
        )


def test_a_package_that_is_installed_from_the_repository_is_the_revisions_own(
    installed: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = installed.repository / "package" / "src"
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}{os.pathsep}{source}")
    found = prepared(installed).modules
    was = (installed.working_directory / "src" / "layers" / "__init__.py").read_bytes()
    assert found["package/src/layers/__init__.py"] == hashlib.sha256(was).hexdigest()
    assert was == b"DEPTH = 1\n"


def test_a_file_that_still_comes_from_the_working_tree_is_refused(installed: Snapshot) -> None:
    model = installed.working_directory / "model.py"
    source = installed.repository / "package" / "src"
    model.write_text(f"import sys\nsys.path.insert(0, {str(source)!r})\n{model.read_text()}")
    with pytest.raises(UsageError, match=r"layers/__init__\.py is imported from the working tree"):
        prepared(installed)


def environment_with(tmp_path: Path, *paths: str) -> Path:
    """A virtual environment that finds packages in `paths`."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text("\n".join(paths))
    return folder


@pytest.mark.timeout(LIMIT_SECONDS)
def test_another_interpreter_measures_its_side(check: Check, tmp_path: Path) -> None:
    here = [str(Path(__file__).parents[2]), *(p for p in sys.path if p.endswith("site-packages"))]
    other = environment_with(tmp_path, *here)
    done = check(*OPTIONS, "--against-python", str(other))
    assert done.returncode == 0, done.stderr
    assert f"(candidate) against {other} (baseline)" in " ".join(done.stdout.split())


def test_an_interpreter_without_dpbench_is_refused_in_one_line(tmp_path: Path) -> None:
    empty = environment_with(tmp_path)
    with pytest.raises(UsageError, match=r"it has no dpbench; .* -m pip install dpbench$"):
        interpreter_of(str(empty))
    with pytest.raises(UsageError, match="expected a virtual environment or an interpreter"):
        interpreter_of(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="expected an interpreter of Python; /bin/true is none"):
        interpreter_of("/bin/true")


def test_a_snapshot_runs_nothing_that_the_repository_configures(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    (project.parent / ".gitattributes").write_text("*.py filter=trap\n")
    git("add", ".", cwd=project.parent)
    git("commit", "-qm", "two", cwd=project)
    git("config", "filter.trap.smudge", f"touch {trap}; cat", cwd=project)
    (project / "link").symlink_to("model.py")
    git("add", "link", cwd=project)
    git("commit", "-qm", "three", cwd=project)
    monkeypatch.chdir(project)
    folder = tmp_path / "then"
    folder.mkdir()
    found = write_snapshot("HEAD", folder, "--against-ref")
    assert found.working_directory == folder / "package"
    assert (folder / "package" / "model.py").read_text() == MODEL
    assert (folder / "package" / "link").readlink() == Path("model.py")
    assert not trap.exists()


def test_a_snapshot_names_the_submodules_that_it_leaves_empty(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git("rev-parse", "HEAD", cwd=project).strip()
    git("update-index", "--add", "--cacheinfo", f"160000,{head},library", cwd=project)
    git("commit", "-qm", "a submodule", cwd=project)
    monkeypatch.chdir(project)
    folder = tmp_path / "then"
    folder.mkdir()
    assert write_snapshot("HEAD", folder, "--against-ref").submodules == ("library",)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A project whose last commit leaves the model alone, checked against the one before."""
    project = make_project(tmp_path_factory.mktemp("unchanged"))
    (project / "notes.txt").write_text("not the model's\n")
    git("add", ".", cwd=project)
    git("commit", "-qm", "two", cwd=project)
    options = (*OPTIONS, "--against-ref", "HEAD~1")
    return project, dpbench(*options, cwd=project, timeout=LIMIT_SECONDS)


@pytest.mark.timeout(LIMIT_SECONDS)
def test_an_unchanged_file_is_not_called_slower(unchanged: tuple[Path, Finished]) -> None:
    project, done = unchanged
    assert done.returncode == 0, done.stderr
    now, before = (load(project / "results" / name) for name in ("now", "now-baseline"))
    assert now.spec.workload.files_sha256 == before.spec.workload.files_sha256


@pytest.mark.timeout(LIMIT_SECONDS)
def test_a_check_of_unchanged_files_says_so_and_knows_both_commits(
    unchanged: tuple[Path, Finished],
) -> None:
    project, done = unchanged
    assert "the same files of this model: nothing has changed" in done.stderr
    first, second = (git("rev-parse", r, cwd=project)[:12] for r in ("HEAD~1", "HEAD"))
    assert f"git commits differ: {first} -> {second}" in " ".join(done.stdout.split())
    before = load(project / "results" / "now-baseline")
    assert {record.environment_id for record in before.records} == set(before.environments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against-ref", "nowhere", "--arch", "model.py:build"], "git knows no such revision in"),
        (["--against-ref", "-q", "--arch", "model.py:build"], "expected a revision of git's"),
        (
            ["--against-ref", "", "--arch", "model.py:build"],
            "--against-ref '': expected a revision",
        ),
        (
            ["--against-ref", "HEAD", "--arch", "new.py:build"],
            "--against-ref HEAD: new.py is not in that revision",
        ),
        (["--against-ref", "HEAD", "--arch", "mlp"], "--arch mlp is not a file in this repository"),
        (["--against-ref", "HEAD", "--against", "dp"], "expected one of --baseline"),
        (["--against-arch", "other.py:build", "--arch", "model.py:build"], "no file other.py here"),
        (["new", "--against-ref", "HEAD"], "which measures both now"),
        (
            ["--against-ref", "nowhere", "--arch", "bare.py:build", "--input-shape", "4"],
            "git knows no such revision in",
        ),
        (
            [
                *("--arch", "bare.py:build", "--input-shape", "4"),
                *("--against-arch", "bare.py:build:input_shape=4"),
            ],
            "has an input_shape already",
        ),
    ],
)
def test_what_cannot_be_compared_takes_one_line(
    arguments: list[str],
    words: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (project / "new.py").write_text(MODEL)
    (project / "bare.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Linear(4, 2)\n"
    )
    monkeypatch.chdir(project)
    assert run(["check", *arguments, "--gpus", "1"]) == 2
    assert words in capsys.readouterr().err
