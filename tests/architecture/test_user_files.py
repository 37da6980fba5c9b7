"""The hash of a workload's files changes with their content, and only with that."""

from __future__ import annotations

import json.decoder
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.architecture.user_files import files_sha256, named_files, user_files
from dpbench.specs import WorkloadSpec

SHIPPED = WorkloadSpec(architecture="mlp", dataset="digits")


def of_file(folder: Path) -> WorkloadSpec:
    (folder / "model.py").write_text("raise AssertionError('imported')")
    return replace(SHIPPED, architecture=f"{folder}/model.py:build")


def test_the_users_files_are_the_named_ones_and_those_of_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    both = replace(of_file(tmp_path), dataset="json.decoder:JSONDecoder")
    assert user_files(both) == (tmp_path / "model.py", Path(json.decoder.__file__))
    for name in ("mlp:width=64", "torchvision:resnet18", "sys:exit", "a.b:c"):
        assert user_files(replace(SHIPPED, architecture=name)) == ()
    assert files_sha256(SHIPPED) is None


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
