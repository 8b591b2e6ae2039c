"""Build or load all compiled functions before they are needed, and hold that they are the law.

Machine code on disk is renewed when its own source file changes, not when a constant of another file does; so what was
loaded is compared with the numpy reference before anybody uses it.
Must never let machine code that differs from the reference be used. Source: numba's documentation, "Caching".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from selector.compiled.reference_comparison import selection_difference
from selector.compiled.selection_kernels import draw_kernel, rows_kernel, whole_rows_kernel

__all__ = ["WarmUp", "warm_up"]

_ROWS, _WIDTH = 3, 2500


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How long it took, seconds; built: functions compiled anew; loaded: functions taken from the cache on disk."""

    seconds: float
    built: int
    loaded: int


def warm_up(clock: Callable[[], float] = time.perf_counter) -> WarmUp:
    """Compile or load the selection for float32 and bfloat16 logits and compare it with the numpy reference.

    Raises RuntimeError when the machine code differs from the reference. Source: DESIGN section 3.
    """
    start = clock()
    generator = np.random.default_rng(1)
    logits = generator.standard_normal((_ROWS, _WIDTH)).astype(np.float32)
    # The second row is cut to few candidates, the third holds a negative NaN.
    logits[1, 9:] = -np.inf
    logits[2, 1000] = np.array([0xFFC00000], dtype=np.uint32).view(np.float32)[0]
    brain = (logits.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    half = _WIDTH // 2
    for whole in (logits, brain):
        difference = selection_difference([whole]) or selection_difference([whole[:, :half], whole[:, half:]])
        if difference is not None:
            raise RuntimeError(
                f"compiled selection differs from the reference ({difference}); delete numba's cache "
                "(__pycache__ beside the source, or NUMBA_CACHE_DIR) and start again"
            )
    kernels = (rows_kernel, draw_kernel, whole_rows_kernel)
    loaded = sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels)
    return WarmUp(clock() - start, sum(len(kernel.signatures) for kernel in kernels) - loaded, loaded)
