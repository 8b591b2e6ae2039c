"""The laws of speculative decoding and their kernels: candidates, counts, draws, acceptance. Imports none of ours."""
