"""Triton kernels of the selector, each beside its naive reference; they need only numpy, torch and triton."""
