# SPDX-License-Identifier: Apache-2.0
"""What SGLang lacks on a machine without a GPU, put in by SGLang's own hook for plug-ins (entry points of `sglang.srt.plugins`) in each
engine process. On PYTHONPATH in tests only. Nothing here touches what kvonce's adapters call: the linker's path needs none of the host
pools, and HiCache needs them only because its own copies are GPU kernels."""
import os


def install():
    from kvonce_sglang_cpu import host_pools
    host_pools.install()
    absorbed_mla()
    if os.environ.get("TRITON_INTERPRET"):
        from kvonce_sglang_cpu import kimi
        kimi.install()
    if os.environ.get("KVONCE_TEST_LORA"):
        unpinned()


def absorbed_mla():
    """DeepSeek models on plain torch attention: SGLang has the path (MLA on the latent), but no rule that picks it."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry, AttnForwardMethod
    AttentionBackendRegistry.register("torch_native", lambda attention, forward_batch: AttnForwardMethod.MLA)


def unpinned():
    """SGLang's LoRA code pins small tensors in host memory whatever the device is; its own torch backend needs nothing else of a GPU."""
    import torch

    def without_pins(make):
        return lambda *args, pin_memory=False, **kwargs: make(*args, **kwargs)

    for name in ("tensor", "empty", "zeros"):
        setattr(torch, name, without_pins(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *args, **kwargs: tensor
