"""Every failure that the field already had is held by a named test here, or is openly named as not yet held."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import yaml

CASES_SHA256 = "1f9d63fe5699fb43d9ae64553823b45df6d3f59367dd30edd9ba7e296219073b"
LAW = "tests/selector/test_field_failures_law.py::test_"
ROWS = "tests/selector/test_field_failures_greedy_and_numbers.py::test_"
RANKS = "tests/ranks/test_field_failures_ranks.py::test_"
OPEN = "open"

HELD_BY = {
    "law-raw-q": LAW + "law_raw_q_is_flagged_although_it_raises_acceptance",
    "law-argmax-draft-soft-q": LAW + "law_argmax_draft_soft_q_is_flagged_and_a_one_hot_q_is_right",
    "law-always-accept": LAW + "law_always_accept_is_flagged",
    "law-shared-noise": LAW + "law_shared_noise_is_caught_and_disjoint_purposes_keep_the_law",
    "law-batch-order": LAW + "law_batch_order_no_request_ever_emits_anothers_token",
    "law-look-at-x": LAW + "law_look_at_x_through_a_later_bad_row_is_flagged_and_truncation_is_right",
    "law-residual-is-p": LAW + "law_residual_is_p_is_flagged",
    "law-forced-reject-residual": LAW + "law_forced_reject_residual_is_flagged",
    "law-temperature-mismatch": LAW + "law_temperature_mismatch_is_flagged_although_it_is_small",
    "law-union-counted-twice": LAW + "law_union_counted_twice_candidates_are_a_set",
    "law-u-zero": LAW + "law_u_zero_a_token_without_target_mass_is_refused_at_draw_zero",
    "law-exact-other-method": LAW + "law_exact_other_method_is_exact_and_is_not_flagged",
    "greedy-mixed-batch": ROWS + "greedy_mixed_batch_a_tie_goes_to_the_lower_id_beside_a_sampled_row",
    "greedy-one-row-or-many": ROWS + "greedy_one_row_or_many_the_selector_gives_identical_bits",
    "greedy-ties-and-batch-size": ROWS
    + "greedy_ties_and_batch_size_give_the_same_two_ids_alone_and_in_a_batch_of_eight",
    "greedy-collapsed-threshold": ROWS + "greedy_collapsed_threshold_there_are_exactly_32_candidates",
    "ranks-draw-apart": RANKS
    + "ranks_draw_apart_another_accepted_length_releases_nothing_and_is_told_apart_from_a_hang",
    "ranks-one-ulp": "tests/ranks/test_linked_cores.py::"
    "test_ranks_that_hold_different_counts_disagree_and_nothing_behind_that_depth_is_accepted",
    "ranks-shape-apart": RANKS + "ranks_shape_apart_a_rank_of_another_depth_is_refused_and_nothing_hangs",
    "ranks-context-limit": "tests/ranks/test_bed_loop.py::"
    "test_a_request_that_would_reach_the_last_position_is_refused_before_a_rank_sees_it",
    "ranks-exchange-mode-apart": "tests/ranks/test_peer_handshake.py::"
    "test_ranks_that_differ_refuse_each_other_and_name_both_values",
    "life-late-reply-reused-slot": "tests/ranks/test_peer_inbox.py::"
    "test_a_reply_that_arrives_after_its_slot_was_given_to_another_request_leaves_that_one_untouched",
    "life-same-id-new-epoch": RANKS + "life_same_id_new_epoch_a_request_that_comes_back_is_served_from_its_prompt",
    "life-placeholder-token": RANKS + "life_placeholder_token_rows_without_drafts_feed_a_valid_id",
    "life-warmup-validity": RANKS + "life_warmup_validity_a_first_round_whose_q_was_never_written_is_target_only",
    "life-negative-timeout": "tests/ranks/test_protocol_values.py::"
    "test_a_deadline_of_nothing_or_less_is_refused_when_the_ladder_is_made",
    "num-nan-row": ROWS + "num_nan_row_ends_its_request_and_leaves_batch_mates_unharmed",
    "num-p-equals-q": ROWS + "num_p_equals_q_the_greatest_draw_is_accepted_and_no_residual_is_drawn",
    "num-zero-draft-mass": ROWS + "num_zero_draft_mass_is_proof_of_an_earlier_failure_and_never_clamped",
    "sem-stop-inside-run": "tests/ranks/test_protocol_values.py::"
    "test_delivery_stops_behind_a_stop_token_and_at_the_budget",
    "sem-stop-string-trims-ids": OPEN,
    "sem-grammar-after-reasoning": OPEN,
    "sem-penalty-history": OPEN,
    "sem-stream-cut": OPEN,
    "sem-counts": RANKS + "sem_counts_drafted_accepted_and_emitted_are_counted_by_their_definitions",
    "sem-client-chunks": OPEN,
    "graph-after-reject": OPEN,
    "depth-sweep": "tests/ranks/test_linked_cores.py::test_greedy_speculation_gives_the_tokens_of_plain_decoding",
}


def test_the_cases_are_the_ones_that_were_written_down(repository: Path) -> None:
    content = (repository / "tests/data/field_failures.yaml").read_bytes()
    assert hashlib.sha256(content).hexdigest() == CASES_SHA256


def test_every_case_is_held_by_a_test_that_exists_or_openly_not_held(repository: Path) -> None:
    groups = yaml.safe_load((repository / "tests/data/field_failures.yaml").read_text(encoding="utf-8"))
    assert {case["id"] for cases in groups.values() for case in cases} == HELD_BY.keys()
    for case, place in HELD_BY.items():
        if place == OPEN:
            continue
        path, _, name = place.partition("::")
        tree = ast.parse((repository / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (case, place)
