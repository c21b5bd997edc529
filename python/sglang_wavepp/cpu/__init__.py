"""CPU reference platform: exact torch kernels, tiny models and fork start, for machines without a GPU."""
