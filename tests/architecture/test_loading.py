"""Names to architectures: shipped ones, those of somebody's module or file, and its errors."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from dpbench import architecture
from dpbench.architecture.loading import convert, default_options
from dpbench.architecture.user_errors import seeded
from dpbench.errors import UsageError


def factory(
    *,
    depth: int = 18,
    rate: float = 0.1,
    bias: bool = True,
    size: Literal["small", "large"] = "small",
    width: int | None = None,
    label: str = "x",
) -> dict[str, Any]:
    return locals()


def untyped(depth=3, deep=False, anything=None, **more):  # type: ignore[no-untyped-def]
    return locals()


@pytest.mark.parametrize(
    ("makes", "typed", "expected"),
    [
        (
            factory,
            {"depth": "50", "rate": "1e-3", "bias": "False", "size": "large", "label": "3"},
            {"depth": 50, "rate": 1e-3, "bias": False, "size": "large", "label": "3"},
        ),
        (factory, {"width": "none"}, {"width": None}),
        (untyped, {"depth": "4", "deep": "true"}, {"depth": 4, "deep": True}),
        (untyped, {"anything": "1", "p": "true"}, {"anything": 1, "p": True}),
    ],
)
def test_values_are_converted_by_annotations_or_defaults_or_as_they_look(
    makes: Any, typed: dict[str, str], expected: dict[str, Any]
) -> None:
    assert convert(typed, makes, "it") == expected


def needs(classes: int) -> None: ...


@pytest.mark.parametrize(
    ("makes", "typed", "message"),
    [
        (factory, {"depth": "x"}, "it: depth: got 'x'; it should be a valid integer"),
        (factory, {"size": "medium"}, "size: got 'medium'; it should be 'small' or 'large'"),
        (factory, {"dept": "3"}, "option of it: got 'dept'; did you mean 'depth'"),
        (needs, {}, "it: classes has no default; expected the option classes=…"),
        (Path.cwd, {"depth": "3"}, "it: got the option depth, but it takes none"),
    ],
)
def test_a_value_of_another_type_and_an_unknown_or_missing_option_are_usage_errors(
    makes: Any, typed: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        convert(typed, makes, "it")


def test_options_are_listed_with_their_defaults_as_they_are_typed() -> None:
    assert default_options(factory) == {
        "depth": "18",
        "rate": "0.1",
        "bias": "true",
        "size": "small (or large)",
        "width": "none",
        "label": "x",
    }
    assert default_options(needs) == {"classes": "required"}
    assert default_options(int) == {}


OUTSIDE = """
import torch

class Small:
    name = "small"
    item = "rows"
    default_dataset = "synthetic"
    def __init__(self, *, depth: int = 2):
        if depth < 1:
            raise ValueError(f"depth: got {depth}, expected at least 1")
        self.depth = depth
    def build_model(self): ...
    def synthetic_batch(self, n, generator): ...
    def loss(self, outputs, targets): ...

class Mute:
    name = "mute"
    item = "rows"
    default_dataset = "synthetic"
    def build_model(self): ...

def broken():
    return torch.nn.Linear(2, 3)(torch.ones(5))

def number():
    return 3

def ends():
    raise SystemExit("usage: train.py --data DIR")

def unsized(width):
    return torch.nn.Linear(4, width)

model = torch.nn.Linear(2, 3)
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own, importable, with a whole and an unfinished architecture."""
    (tmp_path / "outside_models.py").write_text(OUTSIDE)
    (tmp_path / "outside_broken.py").write_text("import json\n\n1 / 0\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "outside_syntax.py").write_text("def make(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "outside_models", raising=False)
    return "outside_models"


@pytest.mark.parametrize("name", architecture.shipped_architectures())
def test_every_shipped_architecture_loads_under_its_own_name(name: str) -> None:
    loaded = architecture.load_architecture(name)
    assert loaded.name == name
    assert architecture.items_per_sample(loaded) >= 1
    assert architecture.architecture_options(name)  # each has sizes that can be chosen


def test_an_unknown_name_gets_the_nearest_one_suggested() -> None:
    with pytest.raises(UsageError, match=r"'mnist_cn'; did you mean 'mnist_cnn'\?.*mlp"):
        architecture.load_architecture("mnist_cn:width=3")


@pytest.mark.parametrize("spelled", ["outside_models", "outside_models.py", "./outside_models.py"])
def test_a_factory_of_a_module_or_a_file_is_called_with_its_options(
    outside: str, spelled: str
) -> None:
    loaded = architecture.load_architecture(f"{spelled}:Small:depth=5")
    assert (loaded.name, loaded.item, loaded.depth) == ("small", "rows", 5)  # type: ignore[attr-defined]
    assert architecture.architecture_options(f"{spelled}:Small") == {"depth": "2"}


def test_a_file_is_imported_once_and_finds_the_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "beside_the_model.py").write_text("WIDTH = 7\n")
    (folder / "json.py").write_text("raise AssertionError('the file took the place of json')\n")
    (folder / "net.py").write_text(
        "import json, torch\nfrom beside_the_model import WIDTH\nloaded = []\n"
        "def make():\n    loaded.append(1)\n"
        "    return torch.nn.Linear(WIDTH, len(loaded)), None, None\n"
    )
    for _ in range(2):
        with pytest.raises(UsageError, match=r"of .Linear, NoneType, NoneType"):
            architecture.load_architecture(f"{folder}/net.py:make")
    own = str(folder / "net.py")
    (module,) = [m for m in [*sys.modules.values()] if getattr(m, "__file__", None) == own]
    assert module.loaded == [1, 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("outside_models:Mute", "returned a Mute without synthetic_batch, loss; see"),
        ("outside_models.py:Small:depth=0", "ValueError: depth: got 0, .*outside_models.py, line"),
        ("outside_models.py:broken", r"broken\(\) raised RuntimeError: .*\(.*models.py, line 23\)"),
        ("outside_models.py:number", r"returned an int; expected \(model, batch, loss\)"),
        ("outside_models.py:ends", "raised SystemExit: usage: train.py"),
        ("outside_broken.py:Small", r"loading it raised ZeroDivisionError.*broken.py, line 3\)"),
        ("sub/outside_syntax.py:make", r"SyntaxError: .* \(sub/outside_syntax.py, line 1\)$"),
        ("outside_models.py:numbr", r"models.py has no numbr\(\); did you mean .number.\?$"),
        ("outside_missing.py:make", "no file outside_missing.py here"),
        ("outside_models.py:model", "model is a model; expected a function that returns a new one"),
        ("outside_models.py:unsized:width=x", r"unsized.. raised TypeError: .*models.py, line 32"),
        ("no_such_package.models:Small", r", package\.module:function with the package on"),
    ],
)
def test_what_is_wrong_with_somebodys_code_is_said_in_one_line(
    name: str, message: str, outside: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        architecture.load_architecture(name)
    assert "\n" not in str(raised.value)


def drawn() -> list[float]:
    return [torch.rand(()).item(), random.random(), float(np.random.rand())]


def test_numbers_repeat_inside_and_go_on_outside() -> None:
    before = torch.get_rng_state(), random.getstate()
    with seeded(3):
        first = drawn()
    with seeded(3):
        assert drawn() == first
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_generators_of_gpus_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding them as torch.manual_seed does could not be undone without starting CUDA."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with seeded(3):
        torch.rand(())
    assert seeds == []
