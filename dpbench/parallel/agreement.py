"""Collectives that compare what the ranks hold, or make it equal.

To compare, ranks send a hash first, in one small message. Only if it differs do they send what they
hold, so that each of them can name the difference. `require_agreement` compares the kinds of
tensors, and `check_sync` their values. `make_equal` gives all ranks the values of one, and
`average` the mean.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDdp

from dpbench.parallel.dp.data_parallel import DataParallel
from dpbench.parallel.groups import (
    gather_tensors,
    gather_values,
    member_group,
    message_device,
    name_ranks,
)
from dpbench.parallel.torch_private import broadcast_coalesced, copy_all

MAX_NAMED = 20
"""Number of tensors that an error names; it only counts the rest."""


def require_agreement(
    caller: str,
    group: dist.ProcessGroup,
    parameters: Iterable[tuple[str, Tensor]],
    buffers: Iterable[tuple[str, Tensor]] = (),
    options: Mapping[str, Any] | None = None,
) -> None:
    """Compare options, and kinds of parameters and buffers, in registration order; a collective.

    `caller` names the function in messages.

    Raises:
        RuntimeError: on every rank, with the first difference and the ranks that differ from rank 0
    """
    parameters, buffers = list(parameters), list(buffers)
    descriptions = [
        *(f"option {name!r}: {value!r}" for name, value in (options or {}).items()),
        *(f"parameter {n!r}: {_kind(p)} requires_grad={p.requires_grad}" for n, p in parameters),
        *(f"buffer {name!r}: {_kind(buffer)}" for name, buffer in buffers),
    ]
    device = next((tensor.device for _, tensor in (*parameters, *buffers)), None)
    for lines in zip_longest(*_unless_equal(descriptions, group, device), fillvalue="nothing more"):
        different = [rank for rank, line in enumerate(lines) if line != lines[0]]
        if different:
            raise RuntimeError(
                f"{caller}: expected the same on all ranks, but rank 0 has {lines[0]}, while rank "
                f"{different[0]} has {lines[different[0]]} (not as on rank 0: "
                f"{name_ranks(different)})"
            )


def make_equal(
    caller: str,
    group: dist.ProcessGroup,
    parameters: Iterable[tuple[str, Tensor]],
    buffers: Iterable[tuple[str, Tensor]],
    options: Mapping[str, Any] | None = None,
    *,
    root: int = 0,
) -> None:
    """Give all ranks the parameters and buffers of one; a collective.

    They are compared first, so that a mismatch is an error on all ranks and changes nothing; see
    require_agreement.
    """
    parameters, buffers = list(parameters), list(buffers)
    require_agreement(caller, group, parameters, buffers, options)
    broadcast_coalesced([t for _, t in (*parameters, *buffers)], group, root)


def broadcast_checkpoint(
    module: nn.Module, *, src: int = 0, process_group: dist.ProcessGroup | None = None
) -> None:
    """Overwrite parameters and buffers with those of one rank; a collective.

    They travel as tensors of bytes, of any dtype, never as pickled objects. Whether all ranks hold
    the same is compared first, so that a mismatch is an error on all of them and changes nothing.

    Args:
        module: plain or wrapped (DataParallel, DistributedDataParallel, ours or torch's); some
            ranks may pass a plain and some a wrapped module.
        src: the rank of the group that sends.
        process_group: the ranks; None means the default group, which has to take tensors on the
            module's device.

    Raises:
        ValueError: the group has no rank `src`.
        RuntimeError: on every rank: ranks disagree on `src`; names, shapes, strides, dtypes or
            requires_grad differ.
    """
    group = member_group(process_group, "broadcast_checkpoint")
    size = dist.get_world_size(group)
    if type(src) is not int or not 0 <= src < size:
        raise ValueError(
            f"broadcast_checkpoint: got src={src!r}, expected a rank of the group: 0 to {size - 1}"
        )
    while isinstance(module, (TorchDdp, DataParallel, nn.DataParallel)):
        module = module.module
    named = module.named_parameters(), module.named_buffers()
    make_equal("broadcast_checkpoint", group, *named, {"src": src}, root=src)


def _kind(tensor: Tensor) -> str:
    """Shape and dtype, as in "(3, 4) torch.float32", with strides if it is not contiguous."""
    strides = "" if tensor.is_contiguous() else f" strides {tensor.stride()}"
    return f"{tuple(tensor.shape)}{strides} {tensor.dtype}"


def _unless_equal(value: Any, group: dist.ProcessGroup, device: torch.device | None) -> list[Any]:
    """The values of all ranks, by rank; empty if their hashes are equal."""
    text = repr(value).encode(errors="backslashreplace")
    content = bytearray(hashlib.blake2b(text, digest_size=16).digest())
    digest = torch.frombuffer(content, dtype=torch.uint8).to(message_device(group, device))
    if all(torch.equal(other, digest) for other in gather_tensors(digest, group)):
        return []
    return gather_values(value, group, device=device)


def tensors_sha256(named: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over names, dtypes, shapes and elements of tensors, in hexadecimal; at about 1 GB/s.

    Devices and memory layouts make no difference; a sparse tensor counts as a dense one.
    """
    content = hashlib.sha256()
    for name, tensor in named:
        content.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        flat = tensor.detach().to_dense().cpu().resolve_conj().contiguous().reshape(-1)
        content.update(flat.view(torch.uint8).numpy().data)
    return content.hexdigest()


class RanksDiffer(RuntimeError):
    """The ranks hold different tensors; the message names them."""


def check_sync(
    module: nn.Module,
    *,
    process_group: dist.ProcessGroup | None = None,
    gradients: bool = False,
) -> None:
    """Compare parameters and buffers over the ranks, bit for bit; a collective.

    A rank hashes its tensors, at about 1 GB/s, and 16 bytes travel. Only if they differ are the
    hashes of all tensors sent, to find which, and then rank 0's values of those, to find how far.

    Args:
        module: plain or wrapped; the same order of construction on every rank is not needed, as
            tensors are compared by name.
        process_group: the ranks; None means the default group.
        gradients: compare `.grad` of every parameter, too.

    Raises:
        RanksDiffer: a RuntimeError, on every rank, with the tensors that differ, the ranks of the
            group whose values differ from its rank 0's, and the largest absolute difference; a
            tensor that a rank does not have, and another shape or dtype, count as different.
    """
    group = member_group(process_group, "check_sync")
    parameters = dict(module.named_parameters())
    tensors = {f"parameter {name!r}": tensor.detach() for name, tensor in parameters.items()}
    tensors |= {f"buffer {n!r}": b.detach().to_dense() for n, b in module.named_buffers()}
    if gradients:
        tensors |= {
            f"gradient of {name!r}": parameter.grad.detach().to_dense()
            for name, parameter in parameters.items()
            if parameter.grad is not None
        }
    digests = {
        name: (f"{tuple(tensor.shape)} {tensor.dtype}", tensors_sha256([("", tensor)]))
        for name, tensor in sorted(tensors.items())
    }
    device = next((tensor.device for tensor in tensors.values()), None)
    if by_rank := _unless_equal(digests, group, device):
        raise RanksDiffer(_tensor_differences(tensors, by_rank, group))


def _tensor_differences(
    tensors: dict[str, Tensor],
    by_rank: Sequence[dict[str, tuple[str, str]]],
    group: dist.ProcessGroup,
) -> str:
    """The error message for the digests of all ranks, the same on all ranks; a collective."""
    names = dict.fromkeys(chain(*by_rank))
    different = [n for n in names if any(d.get(n) != by_rank[0].get(n) for d in by_rank)]
    lines = []
    for name in different[:MAX_NAMED]:
        versions = [digests.get(name, ("absent", "")) for digests in by_rank]
        ranks = [rank for rank, version in enumerate(versions) if version != versions[0]]
        kinds = list(dict.fromkeys(kind for kind, _ in versions))
        line = f"{name}, {' or '.join(kinds)}: {name_ranks(ranks)}"
        if len(kinds) == 1:
            wide = torch.complex128 if tensors[name].is_complex() else torch.float64
            device = message_device(group, tensors[name].device)
            values = tensors[name].to(device, wide).contiguous()
            of_first = values.clone()
            dist.broadcast(of_first, group_src=0, group=group)
            # NaN if one of them is NaN.
            largest = torch.stack(gather_tensors((values - of_first).abs().max(), group)).max()
            line += f", max abs difference {float(largest):.3g}"
        lines.append(line)
    return (
        f"the ranks do not hold the same module: {len(different)} of {len(names)} tensors differ "
        "from rank 0\n  " + "\n  ".join(lines)
    )


def sync_gradients(module: nn.Module, *, process_group: dist.ProcessGroup | None = None) -> None:
    """Replace every gradient by its mean over the ranks; a collective, after backward.

    A parameter without a gradient on this rank counts as zero if another rank has one. If none has,
    it stays without. Gradients travel in one flat tensor per dtype and device. Unlike
    DistributedDataParallel nothing overlaps with backward.

    Args:
        module: an unwrapped module, the same on every rank.
        process_group: the ranks; None means the default group.

    Raises:
        RuntimeError: on every rank: the parameters differ between ranks, or a gradient is sparse
            on one of them. On the ranks concerned: the module is, or contains, a
            DistributedDataParallel, which averages already.
    """
    group = member_group(process_group, "sync_gradients")
    if any(isinstance(child, TorchDdp) for child in module.modules()):
        raise RuntimeError(
            "sync_gradients: the module is or contains a DistributedDataParallel, whose backward "
            "averages gradients already; use one or the other"
        )
    named = list(module.named_parameters())
    require_agreement("sync_gradients", group, named)
    device = message_device(group, named[0][1].device if named else None)
    # 1 for a dense gradient, 2 for a sparse one; the largest counts for all ranks.
    kinds = [0 if p.grad is None else 1 + p.grad.is_sparse for _, p in named]
    flags = torch.tensor(kinds, dtype=torch.uint8, device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX, group)
    gradients = []
    for (name, parameter), kind in zip(named, flags.tolist(), strict=True):
        if kind == 2:
            raise RuntimeError(
                f"sync_gradients: the gradient of parameter {name!r} is sparse on a rank, expected "
                "dense ones; use sparse=False, or DistributedDataParallel"
            )
        if kind:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    average(gradients, group)


def average(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> int:
    """Replace each tensor by its mean over the ranks, one collective per dtype and device.

    They are dense and floating-point or complex, with the same shapes and dtypes in the same order
    on every rank. Returns the number of bytes given to collectives.
    """
    by_kind: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_kind[tensor.dtype, tensor.device].append(tensor.detach())
    nbytes = 0
    for alike in by_kind.values():
        # Divided before the sum, as DistributedDataParallel does: float16 could overflow in it.
        flat = torch.cat([t.reshape(-1) for t in alike]).div_(dist.get_world_size(group))
        dist.all_reduce(flat, group=group)
        parts = torch.split(flat, [tensor.numel() for tensor in alike])
        copy_all(alike, [part.view(t.shape) for part, t in zip(parts, alike, strict=True)])
        nbytes += flat.nbytes
    return nbytes
