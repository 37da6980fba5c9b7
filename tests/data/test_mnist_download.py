"""MNIST is fetched whole or not at all, against a web server of this host."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dpbench.data import mnist_download, mnist_files
from dpbench.errors import DataError
from tests.data.mnist_folder import idx_bytes, images, labels

TRAIN, TEST = 20, 10


def files() -> dict[str, bytes]:
    """By the names of the four files, what they hold unpacked."""
    return {
        split_file.name: idx_bytes(images(n) if "images" in split_file.name else labels(n))
        for split, n in (("train", TRAIN), ("test", TEST))
        for split_file in (
            mnist_files.PUBLISHED[split].images,  # type: ignore[index]
            mnist_files.PUBLISHED[split].labels,  # type: ignore[index]
        )
    }


def published(
    content: dict[str, bytes],
) -> dict[str, mnist_files.SplitFiles[mnist_files.PublishedFile]]:
    """As if these were the files that were published."""

    def one(name: str, samples: int) -> mnist_files.PublishedFile:
        md5 = hashlib.md5(content[name], usedforsecurity=False).hexdigest()
        return mnist_files.PublishedFile(name=name, samples=samples, content_md5=md5)

    return {
        split: mnist_files.SplitFiles(
            images=one(known.images.name, n), labels=one(known.labels.name, n)
        )
        for (split, known), n in zip(mnist_files.PUBLISHED.items(), (TRAIN, TEST), strict=True)
    }


@dataclass
class Mirror:
    """What the server has, what it was asked for, and how it misbehaves."""

    url: str
    packed: dict[str, bytes]
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path, and the range that was asked for."""
    breaks_off_after: int | None = None

    @property
    def environ(self) -> dict[str, str]:
        return {mnist_download.SOURCE_VARIABLE: self.url}


def handler(mirror: Mirror) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            mirror.asked.append((self.path, asked))
            whole = mirror.packed.get(self.path.removeprefix("/mnist/"))
            if whole is None:
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            if start >= len(whole) and asked:
                self.send_error(416)
                return
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
            self.send_header("Content-Length", str(len(whole) - start))
            self.end_headers()
            self.wfile.write(whole[start:][: mirror.breaks_off_after])

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    content = files()
    monkeypatch.setattr(mnist_files, "PUBLISHED", published(content))
    monkeypatch.setattr(mnist_download, "PUBLISHED", mnist_files.PUBLISHED)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    packed = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in content.items()}
    told = Mirror(url="", packed=packed)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(told))
    told.url = f"http://127.0.0.1:{server.server_port}/mnist"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fetch(folder: Path, mirror: Mirror) -> list[str]:
    said: list[str] = []
    mnist_download.fetch(folder, said.append, mirror.environ)
    return said


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"download.lock"}


def test_the_four_files_are_fetched_once_and_announced(tmp_path: Path, mirror: Mirror) -> None:
    folder = tmp_path / "data"
    said = fetch(folder, mirror)
    assert names(folder) == {*mirror.packed}
    assert all(line.startswith(f"downloading {mirror.url}/") for line in said)
    assert len(said) == len(mirror.asked) == 4
    assert fetch(folder, mirror) == []
    assert len(mirror.asked) == 4


def test_a_transfer_that_broke_off_goes_on_where_it_ended(tmp_path: Path, mirror: Mirror) -> None:
    mirror.breaks_off_after = 30
    with pytest.raises(DataError, match=r"stopped \d+ bytes before the end; the same command goes"):
        fetch(tmp_path, mirror)
    (part,) = names(tmp_path)
    assert part.endswith(".gz.part")
    mirror.breaks_off_after = None
    fetch(tmp_path, mirror)
    assert mirror.asked[1][1] == "bytes=30-"
    assert names(tmp_path) == {*mirror.packed}


def test_a_part_that_was_whole_is_taken_and_one_of_another_file_is_fetched_anew(
    tmp_path: Path, mirror: Mirror
) -> None:
    first, second, *_ = mirror.packed
    (tmp_path / f"{first}.part").write_bytes(mirror.packed[first])
    (tmp_path / f"{second}.part").write_bytes(b"another")
    fetch(tmp_path, mirror)
    assert names(tmp_path) == {*mirror.packed}
    of_second = [asked for path, asked in mirror.asked if path.endswith(second)]
    assert of_second == ["bytes=7-", None]


def test_what_is_not_the_published_file_gets_no_name(tmp_path: Path, mirror: Mirror) -> None:
    first = next(iter(mirror.packed))
    mirror.packed[first] = gzip.compress(b"\0" * 100)
    with pytest.raises(DataError, match=r"is not the published .*: MD5 of its content is"):
        fetch(tmp_path, mirror)
    assert names(tmp_path) == set()


def test_a_file_that_unpacks_to_more_than_was_published_is_not_unpacked(
    tmp_path: Path, mirror: Mirror
) -> None:
    first = next(iter(mirror.packed))
    mirror.packed[first] = gzip.compress(bytes(2**24))
    with pytest.raises(DataError, match="more than 15,696 bytes come out of it"):
        fetch(tmp_path, mirror)


def test_a_server_that_sends_too_much_is_left(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist_download, "LARGEST_BYTES", 20)
    with pytest.raises(DataError, match="is larger than 20 bytes, which no file of MNIST is"):
        fetch(tmp_path, mirror)


def test_a_file_that_the_server_lacks_is_named(tmp_path: Path, mirror: Mirror) -> None:
    mirror.packed.clear()
    words = r"cannot download http://127.0.0.1:\d+/mnist/train-images-idx3-ubyte.gz: 404 Not Found"
    with pytest.raises(DataError, match=words):
        fetch(tmp_path, mirror)


def test_of_two_that_fetch_into_one_folder_one_downloads(tmp_path: Path, mirror: Mirror) -> None:
    both = [threading.Thread(target=fetch, args=(tmp_path, mirror)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(mirror.asked) == 4
    assert names(tmp_path) == {*mirror.packed}


def test_a_mirror_is_on_a_web_server(tmp_path: Path) -> None:
    environ = {mnist_download.SOURCE_VARIABLE: "file:///etc"}
    with pytest.raises(DataError, match=r"DPBENCH_MNIST_URL=file:///etc: expected a folder on a"):
        mnist_download.fetch(tmp_path, print, environ)


def test_the_sizes_of_the_published_files_follow_from_their_format() -> None:
    sizes = [
        file.content_bytes
        for split in mnist_files.PUBLISHED.values()
        for file in (split.images, split.labels)
    ]
    assert sizes == [47_040_016, 60_008, 7_840_016, 10_008]
