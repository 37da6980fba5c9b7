"""The errors of an operation that waits for ranks in vain."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist


class RanksMissing(dist.DistBackendError):
    """Some ranks did not come in time.

    Attributes:
        ranks: of the group.
        milliseconds: that this rank waited for them.
    """

    def __init__(self, message: str, ranks: Sequence[int], seconds: float) -> None:
        super().__init__(message)
        self.ranks = list(ranks)
        self.milliseconds = round(seconds * 1000)
