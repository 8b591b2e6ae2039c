"""Which temperature and top_p does this process's target law really have? Measured on a row with a known answer.

The law's own code is run on fixed logits; the answer is attested, never copied from an order.
Must never read a setting. Source: plan, "effective target parameters are attested".
"""

from __future__ import annotations

from math import log

import numpy as np

from selector.target_masses import target_probabilities
from selector.target_statistics import NO_TOKEN, combine_statistics, shard_statistics

__all__ = ["measured_target_policy"]

# Far apart on purpose: a top_p below one would cut the last token, a temperature moves the ratio of the first two.
_LOGITS = (3.0, 1.0, -2.0, -6.0, -16.0, -20.0)


def measured_target_policy() -> tuple[str, str]:
    """Return (temperature, top_p) as decimal text; top_p is the share of the law that no token was cut from."""
    logits = np.array([_LOGITS], dtype=np.float32)
    half = len(_LOGITS) // 2
    shards = [np.ascontiguousarray(logits[:, :half]), np.ascontiguousarray(logits[:, half:])]
    none = np.array([NO_TOKEN], dtype=np.int64)
    first, second = (shard_statistics(shard, rank * half, none) for rank, shard in enumerate(shards))
    normaliser = combine_statistics(first, second)
    parts = [target_probabilities(shard, normaliser)[0] for shard in shards]
    if any(part is None for part in parts):
        return "invalid", "invalid"
    shares = np.concatenate([part for part in parts if part is not None])
    temperature = (_LOGITS[0] - _LOGITS[1]) / log(float(shares[0]) / float(shares[1]))
    kept = float(np.exp(np.array(_LOGITS) - _LOGITS[0])[shares > 0.0].sum())
    whole = float(np.exp(np.array(_LOGITS) - _LOGITS[0]).sum())
    return f"{temperature:.9g}", f"{kept / whole:.12g}"
