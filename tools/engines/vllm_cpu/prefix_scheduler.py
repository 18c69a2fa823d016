# SPDX-License-Identifier: Apache-2.0
"""A scheduler for tests of vLLM with MLA on the CPU.

There the platform turns prefix caching and chunked prefill off for MLA. With both on in the scheduler alone, a local prefix hit runs
the prompt in the same two parts as a restore does: a reference that must be equal bit for bit.
Used with scheduler_cls="prefix_scheduler.PrefixScheduler".
"""
from vllm.v1.core.sched.scheduler import Scheduler


class PrefixScheduler(Scheduler):
    def __init__(self, *args, **kwargs):
        config = kwargs.get("vllm_config") or args[0]
        config.cache_config.enable_prefix_caching = True
        config.scheduler_config.enable_chunked_prefill = True
        super().__init__(*args, **kwargs)
