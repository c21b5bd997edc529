"""Admission decisions: pure functions and state machines. Imports neither torch nor sglang nor zmq."""
