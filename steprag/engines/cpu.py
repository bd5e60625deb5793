"""What this machine's processor is good at."""


def fast_dtype() -> str:
    """`bfloat16` where it has instructions for that, else `float32`: bfloat16 would be emulated, and slower.

    Imports torch (seconds), so ask late.
    """
    import torch

    capabilities = torch.cpu.get_capabilities()
    return "bfloat16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"
