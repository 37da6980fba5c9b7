"""Fetches the files of MNIST into a folder: resumable, bounded, and checked against known hashes.

Nothing is fetched unless the user asks for it. An interrupted transfer leaves a `.part` file, which
the next one continues. A file gets its final name only if its content is that of the published one,
so any file with that name is complete.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from dpbench.data.mnist_files import PUBLISHED, PublishedFile, locate
from dpbench.errors import DataError
from dpbench.files import flush, flush_folder
from dpbench.messages import Say

SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
"""The mirror, which torchvision uses too."""
SOURCE_VARIABLE = "DPBENCH_MNIST_URL"
"""Environment variable that names another mirror, for machines that reach only their own
network."""
LARGEST_BYTES = 16 * 2**20
"""Largest compressed file that is accepted; the largest published one has 9.5 MiB."""
READ_SECONDS = 30.0
"""Timeout for a server that sends nothing."""
PIECE_BYTES = 1 << 16
_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


def fetch(folder: Path, say: Say, environ: Mapping[str, str]) -> None:
    """Download those of the four files that `folder` lacks; make the folder.

    Several processes may call it for one folder: one downloads while the others wait.

    Args:
        say: called with each file's message before its download.
        environ: may name another mirror under SOURCE_VARIABLE.

    Raises:
        DataError: a file cannot be fetched, is larger than it may be, or is not the published one.
    """
    source = _source(environ)
    files = [file for split in PUBLISHED.values() for file in (split.images, split.labels)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "download.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for file in files:
                if locate(folder, file.name) is None:
                    url = urllib.parse.urljoin(source, f"{file.name}.gz")
                    say(f"downloading {url} to {folder}")
                    _fetch_file(url, folder / f"{file.name}.gz", file)
    except OSError as error:
        raise DataError(f"cannot keep MNIST in {folder}: {error.strerror or error}") from None


def _source(environ: Mapping[str, str]) -> str:
    source = environ.get(SOURCE_VARIABLE, SOURCE)
    if urllib.parse.urlsplit(source).scheme not in ("http", "https"):
        raise DataError(
            f"{SOURCE_VARIABLE}={source}: expected a folder on a web server, as in {SOURCE}"
        )
    return source if source.endswith("/") else f"{source}/"


def _fetch_file(url: str, path: Path, file: PublishedFile) -> None:
    part = path.with_name(f"{path.name}.part")
    resumed = part.exists() and part.stat().st_size > 0
    _transfer(url, part)
    wrong = _what_is_wrong(part, file)
    if wrong and resumed:  # the earlier part may belong to another file
        part.unlink()
        _transfer(url, part)
        wrong = _what_is_wrong(part, file)
    if wrong:
        part.unlink()
        raise DataError(
            f"{url} is not the published {file.name}: {wrong}; take another mirror "
            f"with {SOURCE_VARIABLE}, or put the file into {path.parent}"
        )
    part.replace(path)
    flush_folder(path.parent)


def _transfer(url: str, part: Path) -> None:
    """Append to `part` the bytes that the server has beyond it; raises DataError, and keeps the
    bytes received."""
    try:
        with part.open("ab") as file:
            have = file.tell()
            headers = {"Range": f"bytes={have}-"} if have else {}
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=READ_SECONDS) as response:
                if not _continues_at(response, have):
                    file.truncate(0)
                _copy(response, file, url)
            flush(file)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # the server has no more; the hash tells whether it is complete
        raise DataError(f"cannot download {url}: {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as e:
        reason = getattr(e, "reason", None) or str(e) or type(e).__name__
        raise DataError(
            f"cannot download {url}: {reason}; the same command goes on where it broke off"
        ) from None


def _continues_at(response: http.client.HTTPResponse, have: int) -> bool:
    """Whether the server sends the rest, and not the whole file."""
    found = _RANGE.match(response.headers.get("Content-Range", ""))
    return (
        response.status == http.client.PARTIAL_CONTENT
        and found is not None
        and int(found[1]) == have
    )


def _copy(response: http.client.HTTPResponse, file: IO[bytes], url: str) -> None:
    announced = response.length
    size, came = os.fstat(file.fileno()).st_size, 0
    while piece := response.read(PIECE_BYTES):
        came += len(piece)
        if size + came > LARGEST_BYTES:
            raise DataError(
                f"{url} is larger than {LARGEST_BYTES:,} bytes, which no file of MNIST is"
            )
        file.write(piece)
    if announced is not None and came < announced:
        raise ConnectionError(f"the server stopped {announced - came:,} bytes before the end")


def _what_is_wrong(part: Path, file: PublishedFile) -> str | None:
    """The error in the file; None if it is a gzip file of the published content. No more than that
    content has is unpacked."""
    digest, size = hashlib.md5(usedforsecurity=False), 0  # as published
    try:
        with gzip.open(part, "rb") as unpacked:
            while piece := unpacked.read(PIECE_BYTES):
                size += len(piece)
                if size > file.content_bytes:
                    return f"more than {file.content_bytes:,} bytes come out of it"
                digest.update(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return str(error)
    if digest.hexdigest() != file.content_md5:
        return f"MD5 of its content is {digest.hexdigest()}, expected {file.content_md5}"
    return None
