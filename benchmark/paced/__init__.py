"""The paced device, and the benchmarks on it: everything of a server is real but the forward of a stage."""
