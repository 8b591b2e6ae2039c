"""The frozen resampling indices: made once, stored in the bundle, known by their digest.

NumPy promises no stable stream across versions, so a decision reads the stored matrix and never
draws again. Source: plan, "2000 source-cluster resamples with seed 4103"; NEP 19.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from window.errors import WindowError
from window.exit_codes import ExitCode

__all__ = ["draw_index_matrix", "matrix_bytes", "matrix_digest", "read_index_matrix"]


def draw_index_matrix(group_count: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """Return `resamples` rows of `group_count` indices below `group_count`.

    Shape (resamples, group_count), int64, row order, from PCG64(seed). Source: registration, BootstrapRule.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.integers(0, group_count, size=(resamples, group_count), dtype=np.int64)


def matrix_bytes(matrix: NDArray[np.int64]) -> bytes:
    """Return the little-endian int64 bytes in row order."""
    return np.ascontiguousarray(matrix, dtype="<i8").tobytes()


def matrix_digest(matrix: NDArray[np.int64]) -> str:
    """Return the sha-256 hex of the stored bytes."""
    return hashlib.sha256(matrix_bytes(matrix)).hexdigest()


def read_index_matrix(data: bytes, group_count: int, resamples: int, expected_sha256: str) -> NDArray[np.int64]:
    """Return a stored matrix, shape (resamples, group_count). Raises WindowError when it is not the frozen one."""
    if hashlib.sha256(data).hexdigest() != expected_sha256:
        raise WindowError(
            f"the stored index matrix for {group_count} groups is not the registered one; its sha-256 differs",
            ExitCode.EVIDENCE_FAILED,
        )
    return np.frombuffer(data, dtype="<i8").reshape(resamples, group_count).astype(np.int64)
