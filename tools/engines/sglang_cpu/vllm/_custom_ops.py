# SPDX-License-Identifier: Apache-2.0
"""The one kernel of vLLM that SGLang calls on the CPU, in plain torch."""
import torch


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    """Turns query and key in place. positions: [tokens]; query, key: [tokens, heads * head_size], or with the heads apart;
    cos_sin_cache: [positions, turned], cosines first."""
    cos, sin = (half.unsqueeze(1) for half in cos_sin_cache[positions.reshape(-1)].float().chunk(2, dim=-1))
    half = cos.shape[-1]
    for tensor in (query, key):
        heads = tensor.view(positions.numel(), -1, head_size)
        turned = heads[..., : 2 * half]
        if is_neox:
            a, b = turned[..., :half].float(), turned[..., half:].float()
            turned[..., :half], turned[..., half:] = a * cos - b * sin, b * cos + a * sin
        else:
            a, b = turned[..., 0::2].float(), turned[..., 1::2].float()
            turned[..., 0::2], turned[..., 1::2] = a * cos - b * sin, b * cos + a * sin
