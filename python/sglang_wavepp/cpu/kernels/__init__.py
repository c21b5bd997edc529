"""Torch kernels in place of SGLang's Triton kernels."""
