"""A discrete-event pipeline for choosing settings before renting GPUs: ``python -m sglang_wavepp.simulate``."""
