"""A hash of a model, to tell whether two are the same to the bit."""

from __future__ import annotations

import hashlib

import torch


def state_sha256(module: torch.nn.Module) -> str:
    """SHA-256 over the names, dtypes, shapes and bytes of parameters and buffers, in hexadecimal.

    `module` is the bare one, without a wrapper around it. Devices and memory layouts make no
    difference, nor does the order in which the parts were made. Buffers that are in no checkpoint
    do not count. Waits for the device.
    """
    content = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        whole = tensor.detach().cpu().contiguous()
        content.update(f"{name}\0{whole.dtype}\0{tuple(whole.shape)}\0".encode())
        content.update(whole.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()
