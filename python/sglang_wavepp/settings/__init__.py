"""What the operator asked for: one validated settings object, and the options that are refused."""
