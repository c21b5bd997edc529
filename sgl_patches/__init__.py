"""The ledger of every place where SGLang is hooked, and the entry point that applies the hooks."""
