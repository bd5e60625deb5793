"""What this machine's processor is good at."""


def fast_bfloat16() -> bool:
    """Whether it has instructions for bfloat16; without them, bfloat16 is emulated and slower than float32.

    Imports torch (seconds), so ask late.
    """
    import torch

    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
