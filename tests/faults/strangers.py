"""Strangers at the endpoint of a sweep, and folders that come from one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, cycle, islice, product
from pathlib import Path

import psutil

from dpbench.launch.nodes.handshake import (
    GREETING,
    NONCE_BYTES,
    PROOF_BYTES,
    VARIABLE,
    new_token,
    prove_as_node,
)
from dpbench.launch.nodes.messages import Abort, to_json
from dpbench.run.sweep.nodes import free_port
from tests.cli.command import dpbench, start
from tests.faults.local_stranger import attack
from tests.faults.scenario import CannotTry, Scenario, Try, expect

SYNTHETIC = (
    *("sweep", "--arch", "mlp", "--implementations", "ddp"),
    *("--batch-sizes", "8", "--gpus", "1", "--no-charts", "--name", "s"),
)
REAL = (
    *("sweep", "--arch", "tests.launch.faulty:TakesLong", "--implementations", "ddp,torch-ddp"),
    *("--batch-sizes", "4", "--steps", "10", "--gpus", "2", "--oversubscribe", "--no-charts"),
    *("--repetitions", "1", "--name", "r", "--time-limit", "60", "--quiet"),
)
SILENT = 64
TOKEN = new_token()
JOINED_SECONDS = 5.0
ANSWER_SECONDS = 1.0
VICTIM = "the reader's own\n"
ORDER = to_json(Abort(number=1))
WORDS = (
    b"",
    b"GET / HTTP/1.1\r\nHost: node0\r\n\r\n",
    b'["Hello", {"protocol": 1, "node_count": 2}]\n',
    b'["Hello", {"protocol": 2, "node_count": 2}]\n',
    len(ORDER).to_bytes(4, "big") + bytes(PROOF_BYTES) + ORDER,
    GREETING,
    GREETING + bytes(NONCE_BYTES),
    GREETING + bytes(NONCE_BYTES + PROOF_BYTES),
    GREETING + bytes(NONCE_BYTES) + b"x" * 2**20,
    b"x" * 2**22,
)


def at_the_endpoint(tries: int) -> Iterator[Try]:
    """He says what a node, a browser or nobody would say; then the real node comes."""
    for words in islice(cycle(WORDS), tries):
        with waiting() as (lead, port, join):
            answer = said_to_a_stranger(port, words)
            follow = join()
            statuses = [process.wait(90) for process in (follow, lead)]
            yield Try(
                expect(
                    **{f"told nothing, but {answer[:80]!r}": len(answer) in (0, NONCE_BYTES)},
                    **{f"the sweep ends well, not {statuses}": statuses == [0, 0]},
                )
            )


def silent(tries: int) -> Iterator[Try]:
    """A node proves itself beside them, and the real one joins."""
    for _ in range(tries):
        with waiting() as (lead, port, join), ExitStack() as connections:
            where = ("127.0.0.1", port)
            for _ in range(SILENT):
                connections.enter_context(socket.create_connection(where, timeout=10))
            began = time.monotonic()
            with socket.create_connection(where, timeout=10) as node:
                prove_as_node(node, TOKEN)
            seconds = time.monotonic() - began
            statuses = [process.wait(90) for process in (join(), lead)]
            yield Try(
                expect(
                    let_in_time=seconds < JOINED_SECONDS,
                    **{f"the sweep ends well, not {statuses}": statuses == [0, 0]},
                ),
                seconds,
            )


@contextmanager
def waiting() -> Iterator[tuple[subprocess.Popen[str], int, Callable[[], subprocess.Popen[str]]]]:
    """Node 0, which waits at a port, and what starts node 1."""
    port = free_port("127.0.0.1")
    meeting = ("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:

        def run(rank: int) -> subprocess.Popen[str]:
            words = (*SYNTHETIC, *meeting, "--node-rank", str(rank))
            process = start(*words, cwd=Path(folder), **{VARIABLE: TOKEN})
            started.callback(process.communicate)
            started.callback(process.kill)
            return process

        lead = run(0)
        while not _listens(port):
            time.sleep(0.05)
        yield lead, port, lambda: run(1)


def said_to_a_stranger(port: int, words: bytes) -> bytes:
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS) as stranger:
        with suppress(OSError):
            stranger.sendall(words)
        with suppress(OSError):
            while more := stranger.recv(2**16):
                answer += more
    return answer


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def special_files(tries: int) -> Iterator[Try]:
    """A link or a pipe in the place of each file that is read or written, one at a time."""
    kinds: tuple[Callable[[Path, Path], None], ...] = (
        lambda path, victim: path.symlink_to(victim),
        lambda path, _: os.mkfifo(path),
    )
    files = ("trials.jsonl", "sweep.json", "report/table.csv", "report/index.html", "report")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dpbench(*SYNTHETIC, cwd=folder)
        for file, place in islice(cycle(product(files, kinds)), tries):
            victim = folder / "home" / ".bashrc"
            shutil.rmtree(victim.parent, ignore_errors=True)
            victim.parent.mkdir()
            victim.write_text(VICTIM)
            foreign = Path(shutil.copytree(folder / "results/s", folder / "foreign"))
            path = foreign / file
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            place(path, victim if "." in file else victim.parent)
            done = dpbench("report", str(foreign), cwd=folder, timeout=60)
            last = done.stderr.splitlines()[-1:] or [""]
            yield Try(
                expect(
                    **{f"refused with 2, not {done.returncode}": done.returncode == 2},
                    **{f"names the file: {last[0]}": f"{path} is a " in last[0]},
                    nothing_outside_changed=victim.read_text() == VICTIM
                    and len(list(victim.parent.iterdir())) == 1,
                )
            )
            shutil.rmtree(foreign)


def beside_a_sweep(tries: int) -> Iterator[Try]:
    """One sweep after the other until he has tried so often; he is another user of the host."""
    if os.getuid():
        raise CannotTry("another user needs root")
    done = 0
    while done < tries:
        with tempfile.TemporaryDirectory() as name:
            for found in _tries_beside(Path(name)):
                done += 1
                yield found
                if done == tries:
                    return


def _tries_beside(folder: Path) -> Iterator[Try]:
    folder.chmod(0o755)
    temporary, marker = folder / "tmp", folder / "public" / "executed"
    for made in (temporary, marker.parent):
        made.mkdir()
        made.chmod(0o777)
    running = start(*REAL, cwd=folder, TMPDIR=str(temporary))
    try:
        for number in count():
            if running.poll() is not None:
                break
            got = attack(_ports_of(running), temporary, marker, stores=number % 5 == 0)
            yield Try(
                expect(
                    **{f"he reads nothing, but {got.read[:3]}": not got.read},
                    **{f"no store lets him in: {got.stores}": not got.stores},
                    nothing_executed=not marker.exists(),
                )
            )
        _, printed = running.communicate()
        if "Traceback" in printed or running.returncode not in (0, 1):
            yield Try(f"the sweep ends with {running.returncode}: {printed[-300:]}")
    finally:
        running.kill()
        running.communicate()


def _ports_of(running: subprocess.Popen[str]) -> list[int]:
    """At which the process listens, or one that came from it; waits for the first, or its end."""
    ports: set[int] = set()
    with suppress(psutil.Error):
        while not ports and running.poll() is None:
            sweep = psutil.Process(running.pid)
            for process in (sweep, *sweep.children(recursive=True)):
                found = process.net_connections(kind="tcp")
                ports |= {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}
    return sorted(ports)


SCENARIOS = (
    Scenario(
        name="another user beside a running sweep",
        promise="he reads nothing, no store lets him in, nothing that he sends is executed",
        tries=50,
        run=beside_a_sweep,
    ),
    Scenario(
        name="a stranger at the endpoint without the token",
        promise="told nothing but a nonce, and the sweep ends as it would have",
        tries=len(WORDS),
        run=at_the_endpoint,
    ),
    Scenario(
        name=f"{SILENT} silent connections at the endpoint",
        promise=f"a node is let in within {JOINED_SECONDS:g} s",
        tries=3,
        run=silent,
    ),
    Scenario(
        name="a link or a pipe in a folder from elsewhere",
        promise="refused in one line, nothing outside is changed, nobody waits",
        tries=10,
        run=special_files,
    ),
)
