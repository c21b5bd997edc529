"""Servers, workloads and clients for the demo, the end-to-end tests and the measurements."""
