"""Small models that have what implementations trip over, one thing each."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.launch.faulty import Healthy


class Rows(Healthy):
    """Rows of four numbers; their first two, doubled, are the target."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


class Weighted(Rows):
    """A mean over weights that differ between samples, as with ignored or padded targets."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weights = targets.abs()
        return (weights * (outputs - targets) ** 2).sum() / weights.sum()


class CastsLoss(Rows):
    """A loss in float32, as that of many language models."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(outputs.float(), targets.float())


class WithBuffers(Rows):
    """Batch normalization."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


class Frozen(Rows):
    """A layer between two others that does not learn, and half of a layer."""

    def build_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2))
        model[1].requires_grad_(False)
        model[2].get_parameter("bias").requires_grad_(False)
        return model


class TwoTowers(nn.Module):
    """Two towers that hold one weight, of which the second goes through it backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 2)])
        self.layers[1].weight = nn.Parameter(self.layers[1].weight.detach())
        self.back = nn.Linear(5, 4, bias=False)
        self.back.weight = self.layers[1].weight

    def forward(self, inputs: Tensor) -> Tensor:
        first, second, last = self.layers
        hidden = torch.tanh(first(inputs))
        return last(second(hidden) + self.back(hidden))  # type: ignore[no-any-return]


class Tied(Rows):
    """A weight that a member of a list shares with a layer outside of it."""

    def build_model(self) -> nn.Module:
        return TwoTowers()


class Mappings(Rows):
    """Inputs, outputs and targets by name, as somebody's own loss may take them."""

    class Net(nn.Linear):
        def forward(self, *, rows: Tensor, scale: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            return {"score": super().forward(rows) * scale}

    def build_model(self) -> nn.Module:
        return self.Net(4, 2)

    def synthetic_batch(self, n: int, generator: torch.Generator) -> tuple[Any, Any]:
        rows, targets = super().synthetic_batch(n, generator)
        return {"rows": rows, "scale": rows[:, :1].exp()}, {"score": targets}

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return super().loss(outputs["score"], targets["score"])


class DiffersByRank(Rows):
    """A factory that does not follow the seed, as one that takes the time for it."""

    def build_model(self) -> nn.Module:
        model = nn.Linear(4, 2)
        nn.init.normal_(model.weight, mean=float(dist.get_rank()))
        return model


class Embedded(Rows):
    """Tokens whose embedding has dense gradients."""

    sparse: ClassVar[bool] = False

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(11, 4, sparse=self.sparse), nn.Linear(4, 2))

    def synthetic_batch(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(11, (n,), generator=generator)
        return tokens, torch.randn(n, 2, generator=generator)


class Sparse(Embedded):
    """The same with sparse ones, which hold the rows that were used."""

    sparse = True
