"""A whole pruned round on one rank: one selection for all depths and requests, one exchange, one walk.

Must never exchange more than once a round. Source: DESIGN section 3, "Sampled Markov drafts".
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from selector.kernels.launch_count import LaunchLog
from selector.kernels.pruned_walk import WalkBuffers
from selector.kernels.shard_select import SelectBuffers, select_shard_rows

__all__ = ["draft_pruned_round"]


def draft_pruned_round(
    logits: torch.Tensor,
    first_token_id: int,
    select: SelectBuffers,
    exchange: Callable[[], torch.Tensor],
    walk: Callable[[torch.Tensor], WalkBuffers],
    log: LaunchLog | None = None,
) -> WalkBuffers:
    """Draft one round on one rank: select once for all requests and depths, exchange once, walk once.

    logits: float32 or bfloat16 (requests, depth, width) of this rank's shard, contiguous; select: buffers of
    requests * depth rows. exchange: hands select.words to the peer, returns both shards' words in shard order; walk:
    walk_requests with all else given. Source: DESIGN section 3.
    """
    select_shard_rows(logits.view(-1, logits.shape[-1]), first_token_id, select, log)
    return walk(exchange())
