"""The platform object that SGLang asks for its defaults and capabilities."""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from sglang_wavepp.cpu.environment import apply_rank_defaults


class CpuReferencePlatform(CpuDeviceMixin, SRTPlatform):
    """Plain torch on the CPU. Slow, and exact: see ``docs/cpu-platform.md``."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def support_mamba_cache_extra_buffer(self) -> bool:
        return True

    def apply_server_args_defaults(self, server_args: Any) -> None:
        apply_rank_defaults(server_args.tp_size * server_args.pp_size * server_args.dp_size)
