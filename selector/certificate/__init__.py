"""Is a sampler's law what it says? Exhaustive and sampled checks of any proposal and verifier, with stated power."""
