"""The product has at most nine private names of torch, all in one module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, JoinHook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

ROOT = Path(__file__).parent.parent.parent
HOME = "dpbench/parallel/torch_private.py"
NOT_TORCHS = {
    *("_asdict", "_fields", "_replace"),  # of named tuples
    *("_actions", "_config", "_exit"),  # of argparse, multiprocessing and os
    *("_forkserver", "_forkserver_pid"),  # of multiprocessing
}
"""Attributes of Python's own library."""
TORCHS_CLASSES = (
    *(nn.Module, DistributedDataParallel, Optimizer, Tensor, Join, JoinHook, DataLoader, Dataset),
    *(dist.ProcessGroup, dist.Work, dist.Store, torch.Generator, torch.autograd.Function),
)
TORCHS_BASES = {cls.__name__ for cls in TORCHS_CLASSES} | {"Module", "TorchDdp"}
PRIVATE = re.compile(r"_[A-Za-z]\w*")


def is_private(name: str) -> bool:
    return bool(PRIVATE.fullmatch(name)) and not name.endswith("__")


def is_torchs(name: str) -> bool:
    """Whether a class of torch, or an instance of nn.Module, has such an attribute."""
    return any(hasattr(cls, name) for cls in TORCHS_CLASSES) or name in vars(nn.Module())


def own_names(trees: list[ast.Module]) -> set[str]:
    """All private names that the product itself defines."""
    names = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=None):
                names.add(name.rpartition(".")[2])
            case ast.alias(asname=str(name)):
                names.add(name)
    return names


def private_names(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Private names of torch in one module, as attributes, imports, texts and overrides."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("torch"):
                parts = [*module.split("."), *(alias.name for alias in names)]
                # One name, however it is nested.
                yield from [part for part in parts if is_private(part)][:1]
            case ast.Attribute(value=value, attr=name) if is_private(name):
                of_self = isinstance(value, ast.Name) and value.id in ("self", "cls")
                if name not in NOT_TORCHS and (
                    name not in own or (is_torchs(name) and not of_self)
                ):
                    yield name
            case ast.Constant(value=str(text)):
                named = is_private(text) and (is_torchs(text) or text.startswith("_ddp_"))
                if named or re.match(r"torch(\.\w+)*\._\w", text):
                    yield text
            case ast.ClassDef(bases=bases, body=body):
                if {ast.unparse(base).rpartition(".")[2] for base in bases} & TORCHS_BASES:
                    methods = [one.name for one in body if isinstance(one, ast.FunctionDef)]
                    yield from (name for name in methods if is_private(name) and is_torchs(name))


def test_private_names_of_torch_are_few_and_in_one_module() -> None:
    paths = [
        path for folder in ("dpbench", "architectures") for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}
    own = own_names(list(trees.values()))
    found = {name: sorted(set(private_names(tree, own))) for name, tree in trees.items()}
    assert {name: names for name, names in found.items() if names and name != HOME} == {}
    overridden = {"_get_ddp_logging_data"}  # by a mixin, whose own bases are not torch's
    assert 1 <= len({*found[HOME], *overridden}) <= 9, found[HOME]
