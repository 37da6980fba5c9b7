"""The user's file behind a name is found without importing it."""

from __future__ import annotations

import json.decoder
from pathlib import Path

import pytest

from dpbench.architecture.sources import own_file


def test_it_is_the_named_file_or_that_of_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text("raise AssertionError('imported')")
    monkeypatch.chdir(tmp_path)
    assert own_file("model.py:build:depth=3") == tmp_path / "model.py"
    assert own_file("json.decoder:JSONDecoder") == Path(json.decoder.__file__)


@pytest.mark.parametrize("name", ["mlp:width=64", "torchvision:resnet18", "sys:exit", "a.b:c"])
def test_what_is_not_the_users_has_none(name: str) -> None:
    assert own_file(name) is None
