"""A pipeline of ranks with SGLang's own trees, pools, requests and allocations on the CPU, without a model."""
