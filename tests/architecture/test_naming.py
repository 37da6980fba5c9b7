from __future__ import annotations

import contextlib
import json.decoder
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.architecture.naming import (
    FunctionName,
    is_user_code,
    named_files,
    parse_name,
    user_files,
    with_files,
)
from dpbench.errors import UsageError
from dpbench.specs import WorkloadSpec

words = st.text("abcdefghijklmnopqrstuvwxyz_0123456789", min_size=1, max_size=8)
values = st.text("abcxyz0123456789.-", min_size=1, max_size=6)
options = st.dictionaries(words, values, max_size=3)
origins = st.one_of(
    words.map(lambda word: ("shipped", word)),
    st.tuples(words, words).map(lambda two: ("module", f"{two[0]}.{two[1]}:make")),
    st.tuples(words, words).map(lambda two: ("file", f"../{two[0]}/{two[1]}.py:make")),
    words.map(lambda word: ("torchvision", f"torchvision:{word}")),
)


@given(origins, options)
def test_every_spelling_is_read_with_its_options(
    origin: tuple[str, str], given_options: dict[str, str]
) -> None:
    source, spelled = origin
    typed = ",".join(f"{name}={value}" for name, value in given_options.items())
    name = parse_name(f"{spelled}:{typed}" if typed else spelled)
    assert (name.source, name.options) == (source, given_options)
    assert is_user_code(name.text) == (source in ("module", "file"))
    shipped = source == "shipped"
    assert spelled == (name.origin if shipped else f"{name.origin}:{name.factory}")


@given(st.text(max_size=20))
def test_any_text_is_a_name_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert isinstance(parse_name(text), FunctionName)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("net.py", r"expected net\.py:factory, a function in the file"),
        ("", "expected a shipped one as in mlp:width=64, torchvision:NAME, path/to/file.py:"),
        ("mlp:", r"file\.py:factory or package\.module:factory"),
        ("net.py:make:depth", "got 'depth', expected option=value"),
        ("mlp:width=1,width=2", "option width is given twice"),
    ],
)
def test_half_a_name_says_what_is_missing(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_name(text)


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
    assert with_files(SHIPPED) == SHIPPED


@pytest.mark.parametrize("role", ["architecture", "dataset"])
def test_it_follows_the_content_of_each_file_that_is_named(tmp_path: Path, role: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text("a = 1")
    workload = replace(SHIPPED, **{role: f"{file}:build"})
    first = with_files(workload)
    os.utime(file, (0, 0))
    assert with_files(workload) == first != workload
    file.write_text("a = 2")
    assert with_files(workload) != first


def test_words_name_each_file_once(tmp_path: Path) -> None:
    workload = replace(of_file(tmp_path), dataset="own.data:dataset")
    assert named_files(workload) == "model.py or own.data"
