# SPDX-License-Identifier: Apache-2.0
"""Kimi-Linear (MLA and KDA state) in SGLang on the CPU. Its kernels run in Triton's interpreter; the chunked prefill of KDA gives no
numbers there, and is replaced by the recurrence that it computes. Page size 1 only: larger pages want states from within the prefill.
"""
import zlib

import torch


def install():
    _first_tuning_only()
    _mathematics_of_the_interpreter()
    _weights_of_useful_size()
    from sglang.srt.arg_groups import mamba_hook
    from sglang.srt.layers.attention.linear.kernels import kda_triton
    mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
    kda_triton.TritonKDAKernel.extend = _prefill


def _first_tuning_only():
    """Which tuning is fastest says nothing in an interpreter, and trying them takes minutes."""
    from triton.runtime.autotuner import Autotuner
    run = Autotuner.run

    def run_first(self, *args, **kwargs):
        del self.configs[1:]
        return run(self, *args, **kwargs)

    Autotuner.run = run_first


def _mathematics_of_the_interpreter():
    """The interpreter replaces exp, log and so on in triton.language while a kernel runs. Kernels that imported the names before, or
    take them from CUDA's library, must come to those as well."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    def looked_up_late(name):
        return lambda *args, **kwargs: getattr(tl, name)(*args, **kwargs)

    names = ("abs", "cdiv", "exp", "exp2", "log", "log2", "rsqrt", "sigmoid", "sqrt")
    originals = [(getattr(tl, name), name) for name in names if hasattr(tl, name)]
    patch_lang = interpreter._patch_lang
    done = set()

    def patch(function):
        scope = function.__globals__
        if id(scope) not in done:
            done.add(id(scope))
            for key, value in list(scope.items()):
                for original, name in originals:
                    if value is original:
                        scope[key] = looked_up_late(name)
        return patch_lang(function)

    interpreter._patch_lang = patch
    for name in ("exp", "exp2", "log", "rsqrt"):
        setattr(libdevice, name, looked_up_late(name))
    libdevice.fast_expf, libdevice.fast_logf = libdevice.exp, libdevice.log
    libdevice.log1p = lambda x: tl.log(1.0 + x)
    libdevice.tanh = lambda x: 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


def _weights_of_useful_size():
    """In place of dummy weights: drawn by the weight's name, and by the rank where ranks hold different parts of it. So what ranks must
    have in common is equal, and their own heads and states are not."""
    from sglang.srt.model_loader import loader, weight_utils

    def fill(model, *_, **__):
        for module_name, module in model.named_modules():
            for name, weight in module.named_parameters(recurse=False):
                if weight.is_floating_point():
                    weight.data.copy_(_drawn(f"{module_name}.{name}", weight.shape, module))

    weight_utils.initialize_dummy_weights = fill
    if hasattr(loader, "initialize_dummy_weights"):
        loader.initialize_dummy_weights = fill


def _drawn(name, shape, module):
    from sglang.srt.layers.linear import LinearBase, ReplicatedLinear
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from sglang.srt.runtime_context import get_parallel

    parted = isinstance(module, (LinearBase, VocabParallelEmbedding)) and not isinstance(module, ReplicatedLinear)
    parted = parted or "Parallel" in type(module).__name__ or name.endswith(("A_log", "dt_bias"))
    seed = f"{name} {get_parallel().tp_rank}" if parted else name
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    if "norm" in name:
        return torch.ones(shape)
    if "A_log" in name:
        return torch.rand(shape, generator=generator)
    return torch.randn(shape, generator=generator) * (0.1 if "bias" in name else 0.25)


def _decay(raw, A_log, dt_bias, lower_bound):
    """Logarithm of what a token leaves of the state. raw: [tokens, heads, dk]"""
    if A_log is None:
        return raw
    if dt_bias is not None:
        raw = raw + dt_bias.reshape(raw.shape[1:]).float()
    rate = A_log.reshape(1, -1, 1).float().exp()
    if lower_bound is None:
        return -rate * torch.nn.functional.softplus(raw)
    return lower_bound * torch.sigmoid(rate * raw)


def _prefill(self, q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc, A_log=None, dt_bias=None, lower_bound=None,
             beta_is_raw=False, return_intermediate_states=False, **_):
    """The gated delta rule, token by token: S <- S diag(e^g), S <- S + beta (v - S k) k^T, o = S q / sqrt(d).

    q, k: [1, tokens, heads, dk]; v: [1, tokens, heads, dv]; ssm_states: [slots, heads, dv, dk], read and written at cache_indices."""
    heads, dk, dv = q.shape[-2], q.shape[-1], v.shape[-1]
    normal = torch.nn.functional.normalize
    queries, keys = (normal(x.reshape(-1, heads, dk).float(), dim=-1) for x in (q, k))
    values = v.reshape(-1, heads, dv).float()
    weights = beta.reshape(-1, heads).float()
    if beta_is_raw:
        weights = weights.sigmoid()
    kept = _decay(g.reshape(-1, heads, dk).float(), A_log, dt_bias, lower_bound).exp()
    out = torch.zeros(queries.shape[0], heads, dv)
    bounds = query_start_loc.tolist()
    for sequence, slot in enumerate(cache_indices.tolist()):
        first, last = bounds[sequence], bounds[sequence + 1]
        if slot < 0 or first == last:
            continue
        state = ssm_states[slot].float()
        for token in range(first, last):
            state = state * kept[token].unsqueeze(1)
            key = keys[token].unsqueeze(-1)
            error = values[token].unsqueeze(-1) - state @ key
            state = state + weights[token].reshape(-1, 1, 1) * (error @ key.mT)
            out[token] = (state @ queries[token].unsqueeze(-1)).squeeze(-1) * dk ** -0.5
        ssm_states[slot].copy_(state)
    out = out.unsqueeze(0).to(v.dtype)
    return (out, None) if return_intermediate_states else out
