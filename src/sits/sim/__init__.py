"""Where it pretends to run: one engine model with vLLM-V1 semantics, and a loop on which time jumps."""
