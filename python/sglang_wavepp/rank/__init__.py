"""One rank: its admission thread, the hand-over to the executor, start-up and heartbeats."""
