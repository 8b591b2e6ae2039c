"""Real ranks: greedy speculation is plain decoding, and no batch, slot or order changes a token, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ranks.bed import Bed, start_bed
from ranks.ray_session import RaySession
from ranks.records import DraftMode, RequestSpec
from ranks.reference_pair import ReferencePair, plain_decode
from ranks.weights import EMBEDDED_WEIGHTS, load_weights
from tests.ranks.real_requests import specs
from window.token_compare import compare_sampled_rows

pytestmark = [pytest.mark.real, pytest.mark.slow]

ARMS = [(mode, depth) for mode in (DraftMode.GREEDY, DraftMode.SAMPLED) for depth in (4, 5)]
NEW_TOKENS = 24


@pytest.fixture(scope="module", params=ARMS, ids=[f"{mode}-{depth}" for mode, depth in ARMS])
def bed(ray_session: RaySession, request: pytest.FixtureRequest) -> Iterator[Bed]:
    mode, depth = request.param
    with start_bed("cpu", EMBEDDED_WEIGHTS, mode, depth, session=ray_session) as started:
        yield started


@pytest.fixture(scope="module")
def plain_tokens() -> dict[str, tuple[int, ...]]:
    """Greedy tokens of every prompt, one row at a time in this process: no ranks, no protocol, no drafts."""
    with ReferencePair(load_weights(EMBEDDED_WEIGHTS), 1) as pair:
        return {spec.request_id: tuple(plain_decode(pair, 0, spec.prompt_token_ids, NEW_TOKENS)) for spec in specs(0)}


def in_batches(bed: Bed, wanted: list[RequestSpec], batch_size: int) -> dict[str, tuple[int, ...]]:
    tokens = {}
    for start in range(0, len(wanted), batch_size):
        results = bed.run(wanted[start : start + batch_size])
        assert {round_.batch_size for result in results for round_ in result.rounds} <= set(range(1, batch_size + 1))
        tokens.update({result.request_id: result.token_ids for result in results})
    return tokens


@pytest.mark.timeout(240)
def test_greedy_speculation_is_plain_decoding_for_twelve_prompts_in_batches_of_one_to_four(
    bed: Bed, plain_tokens: dict[str, tuple[int, ...]]
) -> None:
    for batch_size in (1, 2, 3, 4):
        tokens = in_batches(bed, specs(0), batch_size)
        for request_id, expected in plain_tokens.items():
            found = tokens[request_id]
            assert compare_sampled_rows(found, len(found), expected, len(expected)).equal, (request_id, batch_size)


@pytest.mark.timeout(240)
def test_sampled_tokens_do_not_change_with_batch_size_slot_or_order(bed: Bed) -> None:
    alone = in_batches(bed, specs(1), 1)
    shuffled = specs(1)
    random.Random(7).shuffle(shuffled)
    assert in_batches(bed, shuffled, 4) == alone
    assert in_batches(bed, list(reversed(specs(1))), 3) == alone
    assert {result.request_id: result.token_ids for result in bed.run(shuffled)} == alone
