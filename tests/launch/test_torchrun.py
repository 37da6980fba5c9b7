"""The arguments of torchrun as they are, workers started through it, and signals they ignore."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from dpbench.errors import DpbenchError, UsageError
from dpbench.launch import torchrun
from dpbench.launch.failures import RanksFailed
from dpbench.launch.torchrun import read_arguments as read
from dpbench.launch.torchrun import run_workers as run
from dpbench.launch.torchrun import workers_failed
from dpbench.rendezvous.placement import Placement
from tests.cli.command import environment, start
from tests.ports import free_port, listening

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # torch's own
SCRIPT = """
import json, os, sys, time
rank = os.environ["RANK"]
kept = {name: value for name, value in os.environ.items() if name.startswith(("RANK", "WORLD_S",
        "LOCAL_", "MASTER_", "OMP_", "ROLE_NAME", "GROUP_R", "TORCHELASTIC_R", "DPBENCH_", "GLOO_",
        "MALLOC_"))}
print(f"about to go, {sys.argv[1:]}", file=sys.stderr, flush=True)
open(f"rank{rank}.json", "a").write(json.dumps({"argv": sys.argv, **kept}) + "\\n")
if sys.argv[1:] == ["fail"]:
    if rank == "1":
        while not os.path.exists("rank0.json"):  # which is killed otherwise before it prints
            time.sleep(0.01)
        sys.exit(7)
    time.sleep(30)
"""


WAIT = """
import os, time
open("place", "w").write(os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"])
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torchrun_here: None) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    # torch leaves it in the process
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    return tmp_path


def told(folder: Path, rank: int) -> list[dict[str, object]]:
    lines = (folder / f"rank{rank}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("nproc-per-node", "2"), ("node-rank", "0"), ("rdzv-endpoint", "h:1"), ("rdzv-id", "7")),
        *(("rdzv-backend", "c10d"), ("rdzv-conf", "timeout=5"), ("max-restarts", "3")),
        *(("master-addr", "h"), ("master-port", "5"), ("log-dir", "logs"), ("local-addr", "h")),
        *(("monitor-interval", "0.5"), ("start-method", "fork")),
    ],
)
def test_both_spellings_of_an_option_are_read(option: str, value: str) -> None:
    field = option.replace("-", "_")
    for name in (option, field):
        for typed in ([f"--{name}", value], [f"--{name}={value}"]):
            chosen = read([*typed, "script.py"])
            assert str(getattr(chosen, field)) == value
            assert chosen.training_script_args == []


def test_everything_after_the_script_is_the_scripts() -> None:
    words = ["--epochs", "5", "--role", "x", "--help", "--", "--nproc-per-node", "9", "--mo", "-m"]
    chosen = read(["--role", "ours", "script.py", *words])
    assert chosen.training_script_args == words
    assert (chosen.role, chosen.nproc_per_node) == ("ours", "1")


def test_cpu_means_a_process_for_each_core() -> None:
    assert int(read(["--nproc-per-node", "cpu", "script.py"]).nproc_per_node) >= 1


def test_more_ranks_of_nccl_than_gpus_are_refused() -> None:
    words = "got --nproc-per-node=64 and a script with nccl, expected at most "
    with pytest.raises(UsageError, match=words):
        read(["--nproc-per-node", "64", "script.py", "--backend", "nccl"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nnodes", "3:1"], "min_nodes must be > 0 and <= max_nodes"),
        (["--max-restarts", "-1"], "max_restarts must be >= 0"),
        (["--rdzv-conf", "timeout"], "option 'timeout' must have a value"),
    ],
)
def test_what_only_its_run_refuses_is_a_usage_error_too(
    arguments: list[str], words: str, folder: Path
) -> None:
    with pytest.raises(UsageError, match=f"torchrun refuses: .*{words}"):
        run(read([*arguments, "script.py"]), threads=1)
    assert not list(folder.glob("rank*"))


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["--nnodes", "2", "--standalone"], ("127.0.0.1", 0)),
        (["--nnodes", "2"], ("127.0.0.1", 29500)),
        (["--nnodes", "1:2", "--master-addr", "host0", "--master-port", "5"], ("host0", 5)),
        (["--nnodes", "2", "--rdzv-endpoint", "[::1]:7"], ("::1", 7)),
    ],
)
def test_where_launchers_meet_is_known(arguments: list[str], place: tuple[str, int]) -> None:
    assert torchrun.endpoint(read([*arguments, "script.py"])) == place


@pytest.mark.parametrize(
    ("arguments", "interface"),
    [
        (["--nnodes=2", "--rdzv-endpoint=127.0.0.1:1"], "lo"),
        (["--nnodes=2", "--rdzv-endpoint=no.such.host.invalid:1"], None),
        (["--nnodes=2", "--rdzv-endpoint=no.such.host.invalid:1", "--local-addr=127.0.0.1"], "lo"),
        (["--nnodes=1"], None),
    ],
)
def test_gloo_is_led_to_the_interface_where_the_nodes_meet(
    arguments: list[str], interface: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    chosen = torchrun.read_arguments([*arguments, __file__])
    assert torchrun.gloo_interface(chosen) == interface
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert torchrun.gloo_interface(chosen) is None
    assert Placement.first_of(1).interface_variables == {"GLOO_SOCKET_IFNAME": "eth7"}


def test_a_node_that_does_not_come_ends_the_wait_in_time() -> None:
    alone = f"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{free_port()} --rdzv-id=job"
    chosen = read([*alone.split(), "--rdzv-conf=join_timeout=1", "script.py"])
    with pytest.raises(DpbenchError, match=r"2 nodes did not come together at 127\.0\.0\.1:\d+ "):
        run(chosen, threads=1)


def test_a_node_0_that_does_not_come_is_one_line() -> None:
    place = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    chosen = read(["--nnodes=2", "--node-rank=1", place, "--rdzv-conf=timeout=1", "script.py"])
    with pytest.raises(DpbenchError, match=r"workers: node 0 did not come within 1 s: .* its own"):
        run(chosen, threads=1)


def test_workers_get_their_place_their_arguments_and_their_share(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those of one node also a place to meet where no other user gets."""
    before = dict(os.environ)
    words = ["--role", "trainer", "--nproc-per-node", "2", "script.py", "--help", "a b"]
    run(read(words), threads=3)
    assert dict(os.environ) == before
    for rank in (0, 1):
        (worker,) = told(folder, rank)
        assert worker["argv"] == ["script.py", "--help", "a b"]
        assert worker["OMP_NUM_THREADS"] == "3"
        assert [worker[name] for name in ("RANK", "LOCAL_RANK")] == [str(rank)] * 2
        assert [worker[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["2"] * 2
        assert worker["ROLE_NAME"] == "trainer"
        assert str(worker["DPBENCH_STORE_FILE"]).endswith("/store")
        assert worker["GLOO_SOCKET_IFNAME"] == "lo"
    assert sorted(capfd.readouterr().err.splitlines()) == [
        f"[trainer rank {rank}] about to go, ['--help', 'a b']" for rank in (0, 1)
    ]


@pytest.mark.slow
def test_workers_of_the_second_of_two_nodes_get_the_places_after_those_of_the_first(
    folder: Path,
) -> None:
    port = free_port()
    launchers = [
        start(
            *("launch", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2"),
            *("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job", "script.py"),
            cwd=folder,
        )
        for node in (0, 1)
    ]
    for launcher in launchers:
        _, printed = launcher.communicate(timeout=90)
        assert launcher.returncode == 0, printed
    for rank, place in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        (worker,) = told(folder, rank)
        assert (worker["GROUP_RANK"], worker["LOCAL_RANK"]) == tuple(map(str, place))
        assert worker["RANK"] == str(rank)
        assert [worker[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["4", "2"]
        assert [worker[name] for name in ("MASTER_ADDR", "MASTER_PORT")] == ["127.0.0.1", str(port)]
        assert worker["TORCHELASTIC_RUN_ID"] == "job"


def test_a_module_is_started_with_what_the_user_has_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    run(read(["--redirects", "3", "--log-dir", "logs", "-m", "script", "x"]), threads=1)
    (worker,) = told(folder, 0)
    assert worker["OMP_NUM_THREADS"] == "5"
    assert worker["argv"] == [str(folder / "script.py"), "x"]
    (kept,) = folder.glob("logs/*/attempt_0/0/stderr.log")
    assert kept.read_text() == "about to go, ['x']\n"


def test_a_program_that_is_no_python_is_started(folder: Path) -> None:
    run(read(["--no-python", "touch", "made"]), threads=1)
    assert (folder / "made").exists()


def test_the_rank_that_failed_first_is_named_with_its_last_lines_after_the_restarts(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RanksFailed) as failed:
        run(read(["--nproc-per-node=2", "--max-restarts=1", "script.py", "fail"]), threads=1)
    assert str(failed.value) == "rank 1 exited with status 7"
    assert failed.value.cause is not None
    assert failed.value.cause.details == "about to go, ['fail']"
    printed = capfd.readouterr().err.splitlines()
    assert {*printed} == {f"[rank {rank}] about to go, ['fail']" for rank in (0, 1)}
    attempts = [worker["TORCHELASTIC_RESTART_COUNT"] for worker in told(folder, 1)]
    assert attempts == ["0", "1"]


@pytest.mark.parametrize("options", [[], ["--master-port", "PORT"]], ids=" ".join)
def test_one_node_listens_on_loopback_and_executes_nothing(
    options: list[str], folder: Path
) -> None:
    """While the workers run; torch itself would take c10d, at all addresses."""
    (folder / "wait.py").write_text(WAIT)
    port = str(free_port())
    before, during = {*listening(os.getpid())}, set[tuple[str, int]]()

    def look() -> None:
        while not (folder / "place").exists():
            time.sleep(0.02)
        during.update(listening(os.getpid()))
        (folder / "go").touch()

    thread = threading.Thread(target=look)
    thread.start()
    run(read([*(port if word == "PORT" else word for word in options), "wait.py"]), threads=1)
    thread.join()
    chosen = port if "PORT" in options else ""
    assert (folder / "place").read_text().startswith(f"127.0.0.1:{chosen}")
    assert {address for address, _ in during - before} <= {"127.0.0.1"}


def test_a_port_that_another_program_has_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(UsageError, match=f"cannot listen at port {port}: Address already in"):
            run(read(["--master-port", port, "script.py"]), threads=1)


LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:2"


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(0, 1, 5, LOST), (1, 3, 6, "ValueError")], "rank 1 exited with status 3"),
        ([(0, 1, 5, LOST), (1, -15, 6, "")], "rank 0 exited with status 1"),
        ([(0, -15, 7, ""), (1, 7, 5, ""), (2, -9, 37, "")], "rank 1 exited with status 7"),
    ],
)
def test_a_rank_that_lost_its_peer_or_that_the_launcher_ended_is_no_first_cause(
    tmp_path: Path, ends: list[tuple[int, int, int, str]], expected: str
) -> None:
    """From (rank, exit code, seconds, stderr) of each."""
    failures = {}
    for rank, exit_code, at_seconds, text in ends:
        made = ProcessFailure(local_rank=rank, pid=1, exitcode=exit_code, error_file="none")
        made.timestamp = at_seconds
        failures[rank] = made
        folder = tmp_path / "run_x" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
    assert str(workers_failed(failures, tmp_path)) == expected


LONG = "import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(1)\nprint('the end')\n"


@pytest.mark.slow
def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """As with nohup, for a launch and its rank; tests/faults has it for a sweep."""
    (tmp_path / "long.py").write_text(LONG)
    words = f"{shlex.quote(sys.executable)} -m dpbench launch --nproc-per-node 1 long.py"
    running = subprocess.Popen(
        ["sh", "-c", f"trap '' HUP INT; exec {words}"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    for number in (signal.SIGHUP, signal.SIGINT):
        os.killpg(running.pid, number)
    printed, _ = running.communicate(timeout=120)
    assert running.returncode == 0, printed


def test_the_agent_handles_what_is_not_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        chosen = read(["--signals-to-handle", "SIGUSR1, SIGHUP,NONSUCH", __file__])
        assert chosen.signals_to_handle == "SIGUSR1,NONSUCH"
    finally:
        signal.signal(signal.SIGHUP, before)
