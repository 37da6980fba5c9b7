"""Self-attention with several heads, as the transformers here share it.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import _flops


def attend(
    packed: torch.Tensor, heads: int, *, causal: bool = False, dropout: float = 0.0
) -> torch.Tensor:
    """Every token's mixture of the values of its sequence, (n, tokens, width).

    `packed` is (n, tokens, 3·width): queries, keys and values side by side. With `causal` a token
    sees none behind it; `dropout` is the share of weights that are dropped.
    """
    # To three of (n, heads, tokens, width/heads), and back.
    query, key, value = packed.reshape(*packed.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(
        query, key, value, is_causal=causal, dropout_p=dropout
    )
    return attended.transpose(1, 2).flatten(2)


def forward_flops(tokens: int, width: int) -> int:
    """Of a whole sequence, with the layers before and behind, as if nothing were masked."""
    layers = _flops.linear(width, 3 * width) + _flops.linear(width, width)
    return tokens * layers + _flops.attention(tokens, width)
