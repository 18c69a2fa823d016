# SPDX-License-Identifier: Apache-2.0
"""Stands for vLLM where SGLang imports one kernel of it on a platform that it does not know: see _custom_ops."""
