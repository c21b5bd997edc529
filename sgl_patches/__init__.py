"""The ledger of every place where SGLang is hooked."""
