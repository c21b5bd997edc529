"""CPU reference platform: serves tiny models without a GPU, bit for bit reproducibly."""
