"""The LOOP: SGLang's scheduler driven by rank 0's command stream."""
