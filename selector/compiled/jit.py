"""How the compiled functions are built: machine code from numba, kept on disk, with IEEE arithmetic as written.

Fast math stays off (no fused or reordered step), division by zero follows numpy, the interpreter lock is released.
Machine code is kept by numba beside the source (`__pycache__`), or where NUMBA_CACHE_DIR points. When that folder can't
be written it goes to the user's cache folder (`~/.cache/numba`), and when that can't be written either nothing is kept:
the functions still work, every process compiles them anew. A file of the cache is written under another name and then
renamed, so two processes that compile at once each do the work and one of them keeps it. The cache names the
processor, so a folder that several machines share is safe. It knows the age of a function's own file only: all machine
code of the selection therefore stands in one file, and `warm_up` compares what was loaded with the reference, because a
constant of another file may have changed.
Must never turn fast math on. Source: numba's documentation, "Caching"; DESIGN section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

__all__ = ["compiled"]


def compiled(function: Callable[..., Any]) -> Any:
    """Return the function as machine code, built at its first call for those argument types and kept on disk."""
    try:
        return njit(cache=True, error_model="numpy", fastmath=False, nogil=True)(function)
    except RuntimeError:
        # numba raises this at once, before any compilation, when it finds no folder that can be written.
        return njit(cache=False, error_model="numpy", fastmath=False, nogil=True)(function)
