"""Multi-head self-attention, shared by the transformers here.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def attend(
    packed: torch.Tensor, heads: int, *, causal: bool = False, dropout: float = 0.0
) -> torch.Tensor:
    """The attention-weighted values of its sequence for every token, (n, tokens, width).

    `packed` is (n, tokens, 3·width): queries, keys and values side by side. With `causal` a token
    does not see later ones; `dropout` is the share of attention weights that are dropped.
    """
    # Reshaped to three tensors (n, heads, tokens, width/heads), and back below.
    query, key, value = packed.reshape(*packed.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(
        query, key, value, is_causal=causal, dropout_p=dropout
    )
    return attended.transpose(1, 2).flatten(2)
