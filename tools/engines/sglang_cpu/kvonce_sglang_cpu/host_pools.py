# SPDX-License-Identifier: Apache-2.0
"""HiCache's host pools without CUDA: memory that is not pinned, and copies between device and host as torch indexing, for the layouts
layer_first (not of states: SGLang has none) and page_first."""
import torch


def install():
    from sglang.srt.mem_cache.pool_host import base, common, mamba, mha, mla
    # SGLang leaves 10 GiB to others before it takes a byte; the tests' pools have some hundred KiB.
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 1 << 30
    common.ALLOC_MEMORY_FUNCS["cpu"] = _allocate
    _unpinned(base.HostKVCache)
    _replace_copies(mha.MHATokenToKVPoolHost, _mha_down, _mha_up)
    _replace_copies(mla.MLATokenToKVPoolHost, _mla_down, _mla_up)
    _replace_copies(mamba.MambaPoolHost, _mamba_down, _mamba_up)


def _unpinned(pool):
    """Neither its memory nor the flat pages that it hands out, on the way of whole pages, are pinned."""
    make = pool.__init__

    def unpinned(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.pin_memory = False

    pool.__init__ = unpinned


def _replace_copies(pool, down, up):
    pool.backup_from_device_all_layer = down
    pool.load_to_device_per_layer = up


def _allocate(dims, dtype, device, pin_memory=True, allocator=None, registration_granularity_bytes=None):
    return torch.zeros(dims, dtype=dtype, device=device)


def _at(pool, rows, layer):
    """Where these rows of a layer are in the pool's buffer."""
    return (layer, rows) if pool.layout == "layer_first" else (rows, layer)


def _mha_down(self, device_pool, host_rows, device_rows, io_backend):
    keys, values = self.kv_buffer[0], self.kv_buffer[1]
    for layer in range(self.layer_num):
        keys[_at(self, host_rows, layer)] = self.device_k_buffers[layer][device_rows]
        values[_at(self, host_rows, layer)] = self.device_v_buffers[layer][device_rows]


def _mha_up(self, device_pool, host_rows, device_rows, layer, io_backend, *, is_draft=False):
    self.device_k_buffers[layer][device_rows] = self.kv_buffer[0][_at(self, host_rows, layer)]
    self.device_v_buffers[layer][device_rows] = self.kv_buffer[1][_at(self, host_rows, layer)]


def _mla_down(self, device_pool, host_rows, device_rows, io_backend):
    for layer in range(self.layer_num):
        self.kv_buffer[_at(self, host_rows, layer)] = device_pool.kv_buffer[layer][device_rows]


def _mla_up(self, device_pool, host_rows, device_rows, layer, io_backend, *, is_draft=False):
    device_pool.kv_buffer[layer][device_rows] = self.kv_buffer[_at(self, host_rows, layer)]


def _mamba_down(self, device_pool, host_rows, device_rows, io_backend):
    for layer, state in enumerate(self.temporal_device_layers):
        self.temporal_buffer[host_rows, layer, 0] = state[device_rows]
        for host, device in zip(self.conv_buffer, self.conv_device_layers):
            host[host_rows, layer, 0] = device[layer][device_rows]


def _mamba_up(self, device_pool, host_rows, device_rows, layer, io_backend, *, is_draft=False):
    self.temporal_device_layers[layer][device_rows] = self.temporal_buffer[host_rows, layer, 0]
    for host, device in zip(self.conv_buffer, self.conv_device_layers):
        device[layer][device_rows] = host[host_rows, layer, 0]
