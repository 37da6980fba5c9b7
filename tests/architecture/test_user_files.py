"""The hash of a workload's files changes with their content, and only with that."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.architecture.user_files import files_sha256, named_files
from dpbench.specs import WorkloadSpec

SHIPPED = WorkloadSpec(architecture="mlp", dataset="digits")


def of_file(folder: Path) -> WorkloadSpec:
    (folder / "model.py").write_text("import layers")
    return replace(SHIPPED, architecture=f"{folder}/model.py:build")


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_it_is_the_hash_of_what_sha256sum_prints(tmp_path: Path) -> None:
    workload = replace(of_file(tmp_path), dataset=f"{tmp_path}/data.py:dataset")
    (tmp_path / "data.py").write_text("a = 1")
    printed = f"{sha256('import layers')}  model.py\n{sha256('a = 1')}  data.py\n"
    assert files_sha256(workload) == sha256(printed)


@pytest.mark.parametrize("role", ["architecture", "dataset"])
def test_it_follows_the_content_of_each_file_that_is_named(tmp_path: Path, role: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text("a = 1")
    workload = replace(SHIPPED, **{role: f"{file}:build"})
    first = files_sha256(workload)
    os.utime(file, (0, 0))
    assert files_sha256(workload) == first is not None
    file.write_text("a = 2")
    assert files_sha256(workload) != first


def test_words_name_each_file_once(tmp_path: Path) -> None:
    workload = replace(of_file(tmp_path), dataset="own.data:dataset")
    assert named_files(workload) == "model.py or own.data"
