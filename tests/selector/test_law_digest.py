"""The digest of a law and its token: every single change is seen, and memory layout is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.draft_law import GRID, DraftCounts, draft_law
from selector.law_digest import counts_digest, mix64
from selector.law_ids import EXACT_LAW_ID, GREEDY_LAW_ID


def law_of(logits: list[float]) -> DraftCounts:
    law = draft_law(np.array(logits, dtype=np.float32))
    assert isinstance(law, DraftCounts)
    return law


def digest_in_plain_integers(law: DraftCounts, token: int, law_id_number: int) -> int:
    def mix(word: int) -> int:
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    pairs = zip(law.token_ids.tolist(), law.counts.tolist(), strict=True)
    total = sum(mix(place << 56 | token_id << 25 | count) for place, (token_id, count) in enumerate(pairs))
    total += mix(1 << 63 | len(law.token_ids) << 32 | token) + law_id_number
    return mix(total % 2**64)


def test_the_digest_is_that_of_its_formula_in_plain_integers() -> None:
    law = law_of([1.0, 0.5, 0.25, -7.0])
    # blake2b-64.
    assert counts_digest(law, 2, EXACT_LAW_ID) == digest_in_plain_integers(law, 2, 0x493F40F18E9FA846)


def test_a_digest_tells_every_change_of_law_or_token_apart() -> None:
    law = law_of([1.0, 0.5, 0.25])
    changed = [
        law,
        DraftCounts(law.token_ids, law.counts + np.array([-1, 1, 0])),
        DraftCounts(law.token_ids + np.int32(1), law.counts),
        DraftCounts(law.token_ids[:2], law.counts[:2]),
        DraftCounts(law.token_ids[::-1], law.counts[::-1]),
    ]
    digests = [counts_digest(item, 0, EXACT_LAW_ID) for item in changed]
    digests += [counts_digest(law, 1, EXACT_LAW_ID), counts_digest(law, -1, EXACT_LAW_ID)]
    digests.append(counts_digest(law, 0, GREEDY_LAW_ID))
    assert len(set(digests)) == len(digests)
    assert all(0 <= digest < 1 << 64 for digest in digests)


def test_a_digest_depends_on_values_and_not_on_memory_layout() -> None:
    law = law_of([1.0, 0.5, 0.25, 0.125])
    strided = DraftCounts(np.repeat(law.token_ids, 2)[::2], np.repeat(law.counts, 3)[::3])
    big_endian = DraftCounts(law.token_ids.astype(">i4"), law.counts.astype(">i8"))
    assert len({counts_digest(item, 2, EXACT_LAW_ID) for item in (law, strided, big_endian)}) == 1


@given(st.data())
def test_any_change_of_one_candidate_changes_the_digest(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 32))
    ids = np.array(data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size)), dtype=np.int32)
    counts = np.array(data.draw(st.lists(st.integers(0, GRID), min_size=size, max_size=size)), dtype=np.int64)
    place = data.draw(st.integers(0, size - 1))
    other_ids, other_counts = ids.copy(), counts.copy()
    other_ids[place] = data.draw(st.integers(0, 2**31 - 1))
    other_counts[place] = data.draw(st.integers(0, GRID))
    same = bool((ids == other_ids).all() and (counts == other_counts).all())
    digests = [
        counts_digest(DraftCounts(*pair), 5, EXACT_LAW_ID) for pair in ((ids, counts), (other_ids, other_counts))
    ]
    assert (digests[0] == digests[1]) == same


def test_a_sum_of_plain_words_would_miss_counts_that_change_places() -> None:
    law = law_of([1.0, 0.5])
    swapped = DraftCounts(law.token_ids, law.counts[::-1])

    def planted(item: DraftCounts) -> int:
        return int((item.token_ids.astype(np.uint64) << np.uint64(25)).sum() + item.counts.astype(np.uint64).sum())

    assert planted(law) == planted(swapped)
    assert counts_digest(law, 0, EXACT_LAW_ID) != counts_digest(swapped, 0, EXACT_LAW_ID)


def test_the_scrambling_of_words_is_that_of_splitmix64() -> None:
    # The first output of SplitMix64 seeded with 0 is mix64 of its increment.
    assert int(mix64(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF


def test_a_token_beyond_32_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="drafted_token is 2147483648"):
        counts_digest(law_of([1.0]), 1 << 31, EXACT_LAW_ID)
