"""The memory of a group as its users see it."""

from __future__ import annotations

from torch import Tensor

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.shm.arena import Arena, allocate
from dpbench.parallel.shm.engine import engine
from dpbench.parallel.shm.issuer import Issuer
from dpbench.parallel.shm.member import Member


@not_compiled
class SharedArena:
    """Gives memory in which a group reduces without copying.

    It is no part of the group, as compiled code may ask a group only for what torch's own have.
    """

    def __init__(self, member: Member, issuer: Issuer) -> None:
        self._member = member
        self._issuer = issuer
        self.arena = Arena(member.rank)

    def allocate(self, nbytes: int) -> Tensor:
        """Memory in which tensors are reduced without being copied; a collective.

        `all_reduce` of tensors that lie at one offset of it on all ranks works in place.

        Args:
            nbytes: the size of this rank's part; the same on all ranks.

        Returns:
            uint8, `(nbytes,)`, zeroed, on a page boundary. The memory is freed when the storages
            of these tensors are gone, this rank's at once, and used again when all are.

        Raises:
            ValueError: for a negative size.
            OSError: on every rank, if one of them could not get the memory.
            torch.distributed.DistBackendError: as of every collective.
        """
        if nbytes < 0:
            raise ValueError(f"got nbytes={nbytes}, expected a number of bytes, 0 or more")
        steps = allocate(self._member, self.arena, nbytes)
        work = self._issuer.issue("allocate", steps, self._issuer.collectives)
        work.wait()
        tensor: Tensor = work.value
        return tensor

    def poll(self) -> None:
        """Get on with pending collectives without waiting; cheap when there are none."""
        engine().poll(self._issuer.collectives)
