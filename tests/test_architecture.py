from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dpbench import architecture
from dpbench.errors import UnknownName, UsageError

NAMES = ("mlp", "mnist_cnn", "resnet18", "transformer")
OUTSIDE = """
class Small:
    name = "small"
    item = "rows"
    default_dataset = "synthetic"
    flops_per_item = 1.0
    def build_model(self): ...
    def synthetic_batch(self, n, generator): ...
    def loss(self, outputs, targets): ...

class Mute:
    name = "mute"
    item = "rows"
    default_dataset = "synthetic"
    flops_per_item = 1.0
    def build_model(self): ...
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own, importable, with a whole and an unfinished architecture."""
    (tmp_path / "outside_models.py").write_text(OUTSIDE)
    (tmp_path / "outside_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "outside_models", raising=False)
    return "outside_models"


def test_the_names_are_exactly_the_shipped_architectures() -> None:
    assert architecture.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_architecture_loads_under_its_own_name(name: str) -> None:
    architecture.check(name)
    assert architecture.load(name).name == name


def test_names_and_checks_import_neither_torch_nor_an_architecture() -> None:
    code = (
        "import sys; from dpbench import architecture; architecture.check(architecture.names()[0]);"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('architectures.')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("use", [architecture.check, architecture.load])
def test_an_unknown_name_gets_the_nearest_one_suggested(use: object) -> None:
    assert callable(use)
    with pytest.raises(UnknownName, match=r"'mnist_cn'. Did you mean 'mnist_cnn'\?.*mlp"):
        use("mnist_cn")


def test_a_factory_of_another_package_is_called(outside: str) -> None:
    architecture.check(f"{outside}:Small")
    loaded = architecture.load(f"{outside}:Small")
    assert (loaded.name, loaded.item) == ("small", "rows")


def test_an_architecture_that_lacks_members_is_told_which(outside: str) -> None:
    with pytest.raises(UsageError, match="a Mute without synthetic_batch, loss; see"):
        architecture.load(f"{outside}:Mute")


def test_a_factory_that_is_not_in_the_module_is_named(outside: str) -> None:
    with pytest.raises(UsageError, match=r"outside_models has no Large\(\)"):
        architecture.load(f"{outside}:Large")


@pytest.mark.parametrize("name", ["json:loads", "json:decoder", "outside_broken:Small"])
def test_what_goes_wrong_inside_the_factory_is_a_usage_error(name: str, outside: str) -> None:
    with pytest.raises(UsageError, match=r"loading it raised|has no decoder"):
        architecture.load(name)


@pytest.mark.parametrize(
    "name", ["no_such_module:Small", "no_such_package.models:Small", "outside_models:", ":Small"]
)
def test_a_module_that_is_not_found_is_a_usage_error(name: str, outside: str) -> None:
    with pytest.raises(UsageError, match=r"package\.module:factory"):
        architecture.check(name)


def test_a_shipped_module_can_be_named_in_full() -> None:
    assert architecture.load("architectures.mlp:Architecture").name == "mlp"
