"""A group's shared memory as its users see it."""

from __future__ import annotations

from torch import Tensor

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.shm.arena import Arena, allocate
from dpbench.parallel.shm.descriptor import NOWHERE
from dpbench.parallel.shm.engine import engine
from dpbench.parallel.shm.issuer import Issuer
from dpbench.parallel.shm.member import Member


@not_compiled
class SharedArena:
    """Allocates memory in which a group reduces without copying.

    It is not an attribute of the group, as compiled code may use only what torch's own groups have.

    Attributes:
        size: number of ranks that share it.
        arena: the memory itself.
    """

    def __init__(self, member: Member, issuer: Issuer) -> None:
        self._member = member
        self._issuer = issuer
        self.size = member.size
        self.arena = Arena(member.rank)

    def allocate(self, nbytes: int) -> Tensor:
        """Allocate memory in which tensors are reduced without being copied; a collective.

        `all_reduce` works in place on tensors that lie at the same offset of it on all ranks.

        Args:
            nbytes: the size of this rank's part; the same on all ranks.

        Returns:
            uint8, `(nbytes,)`, zeroed, on a page boundary. The memory is freed when the storages
            of these tensors are gone, this rank's at once, and used again when all are.

        Raises:
            ValueError: the size is negative.
            OSError: on every rank: one of them could not get the memory.
            torch.distributed.DistBackendError: as for every collective.
        """
        if nbytes < 0:
            raise ValueError(f"got nbytes={nbytes}, expected a number of bytes, 0 or more")
        steps = allocate(self._member, self.arena, nbytes)
        work = self._issuer.issue("allocate", steps, self._issuer.collectives)
        work.wait()
        tensor: Tensor = work.value
        return tensor

    def everywhere(self, tensor: Tensor) -> list[Tensor]:
        """What all ranks have where this rank has `tensor`, by rank.

        Args:
            tensor: 1-D, contiguous and within what `allocate` returned, of which all ranks have as
                much.

        Raises:
            ValueError: it lies elsewhere.
        """
        place = self.arena.place_of(tensor)
        if place == NOWHERE:
            raise ValueError("got a tensor of other memory, expected one that `allocate` returned")
        return self.arena.operands(place, tensor)

    def poll(self) -> None:
        """Advance pending collectives without waiting; cheap when there are none."""
        engine().poll(self._issuer.collectives)
