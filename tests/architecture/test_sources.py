"""The files of a user's code are found by reading it, and nothing else is among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.architecture.sources import own_files


def write(folder: Path, **files: str) -> None:
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_a_file_comes_with_what_it_imports_from_beside_at_any_depth(tmp_path: Path) -> None:
    write(
        tmp_path,
        model="import torch, layers\nfrom blocks import deep\nimport missing\n",
        layers="def width():\n    import late\n",
        late="import model\n",
        unused="",
        blocks__deep="from . import deeper\nfrom .other import *\n",
        blocks__deeper="",
        blocks__other="",
    )
    (tmp_path / "blocks" / "__init__.py").write_text("")
    assert [*own_files(f"{tmp_path}/model.py:build:depth=3")] == [
        "blocks/__init__.py",
        "blocks/deep.py",
        "blocks/deeper.py",
        "blocks/other.py",
        "late.py",
        "layers.py",
        "model.py",
    ]


def test_a_folder_without_init_is_a_package_too_and_a_broken_file_counts(tmp_path: Path) -> None:
    write(tmp_path, model="from parts.layers import width", parts__layers="not Python")
    assert [*own_files(f"{tmp_path}/model.py:build")] == ["model.py", "parts/layers.py"]


def test_files_of_the_working_directory_are_imported_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, models__mine="import shared", shared="import dpbench")
    write(tmp_path, dpbench="")
    monkeypatch.chdir(tmp_path)
    assert [*own_files("models/mine.py:build")] == ["../shared.py", "mine.py"]


def test_a_module_counts_with_its_packages_and_an_installed_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, own_net__model="from own_net import layers", own_net__layers="")
    (tmp_path / "own_net" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    expected = ["own_net/__init__.py", "own_net/layers.py", "own_net/model.py"]
    assert [*own_files("own_net.model:build")] == expected
    assert [*own_files("json.decoder:JSONDecoder")] == ["json/decoder.py"]


@pytest.mark.parametrize("name", ["mlp", "mlp:width=64", "timm:resnet18", "sys:exit", "digits"])
def test_what_is_not_the_users_has_no_files(name: str) -> None:
    assert own_files(name) == {}
