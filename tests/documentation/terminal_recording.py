"""What a command shows in a terminal of its own while it runs."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Sequence
from html import escape
from pathlib import Path
from time import monotonic

import pyte

from tests.documentation.terminal_picture import Frame

COLUMNS, ROWS = 100, 26
FRAME_SECONDS = 0.25
TYPING_SECONDS = 1.0
"""How long the prompt with the command stands alone."""
COLORS = {
    "red": "#f47067",
    "green": "#8ddb8c",
    "brown": "#f69d50",
    "yellow": "#f69d50",
    "blue": "#6cb6ff",
    "cyan": "#76e3ea",
    "magenta": "#dcbdfb",
}


def record(command: Sequence[str], shown: str, folder: Path) -> list[Frame]:
    """Runs a command in a terminal of its own; `shown` is what the picture says was typed.

    Raises RuntimeError unless it exits with 0.
    """
    started, process, terminal = monotonic(), *_start(command, folder)
    # The screens are made afterwards: beside a sweep, that would take half a core from it.
    chunks: list[tuple[float, bytes]] = []
    while chunk := _read(terminal):
        chunks.append((TYPING_SECONDS + monotonic() - started, chunk))
    os.close(terminal)
    if process.wait() != 0:
        raise RuntimeError(f"{shown}: exit status {process.returncode}")
    return _frames(shown, chunks)


def _frames(shown: str, chunks: Sequence[tuple[float, bytes]]) -> list[Frame]:
    """Screens at least FRAME_SECONDS apart, from the bytes that were written at each time."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {shown}\r\n".encode())
    frames = [Frame(at_seconds=0.0, lines=_lines(screen))]
    latest = TYPING_SECONDS
    for at_seconds, chunk in chunks:
        stream.feed(chunk)
        if at_seconds - latest >= FRAME_SECONDS:
            latest = at_seconds
            frames.append(Frame(at_seconds=latest, lines=_lines(screen)))
    frames.append(Frame(at_seconds=chunks[-1][0], lines=_lines(screen)))
    return frames


def _start(command: Sequence[str], folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "NO_COLOR"}}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment | {"TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def _read(terminal: int) -> bytes:
    """What comes next; nothing once the command has closed its end."""
    select.select([terminal], [], [])
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: how Linux says that nobody has the other end open
        return b""


def _lines(screen: pyte.Screen) -> tuple[str, ...]:
    return tuple(_line(screen, row) for row in range(ROWS))


def _line(screen: pyte.Screen, row: int) -> str:
    """One line of the screen as SVG text, neighbours of the same look joined."""
    looks = [(screen.buffer[row][x].data, *_look(screen.buffer[row][x])) for x in range(COLUMNS)]
    while looks and looks[-1][0] == " ":
        looks.pop()
    parts: list[tuple[str, str]] = []
    for sign, *look in looks:
        style = " ".join(filter(None, look))
        if parts and parts[-1][1] == style:
            parts[-1] = (parts[-1][0] + sign, style)
        else:
            parts.append((sign, style))
    return "".join(
        f"<tspan {style}>{escape(text)}</tspan>" if style else escape(text) for text, style in parts
    )


def _look(character: pyte.screens.Char) -> tuple[str, str]:
    color = COLORS.get(character.fg) or (f"#{character.fg}" if len(character.fg) == 6 else None)
    return f'fill="{color}"' if color else "", 'font-weight="bold"' if character.bold else ""
