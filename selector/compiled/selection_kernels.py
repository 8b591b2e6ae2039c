"""The machine code of the selection, all of it in one file, so that a change renews everything kept on disk.

Rows: one pass turns each logit into an integer of the same order (in registers, never written) and keeps the maximum of
every lane of eight. Maxima of lanes give maxima of groups; a bound that 32 groups reach is not above the 32nd greatest
logit, so only the few lanes that reach it are looked at again. The same pass sees the least integer, which betrays a
negative NaN. Merge and draw: keys of all shards as a set, weights and counts in integers, Philox, digest.
Must never compare logits as floats (a processor set to flush denormals would order them otherwise), fuse or reorder
the one subtraction and two multiplications in floating point, or take a shard's word that its keys are sorted.
Source: DESIGN section 3; selector/candidates.py, draft_law.py, philox.py, law_digest.py are the naive references.
"""

from __future__ import annotations

import numpy as np

from selector.compiled.jit import compiled
from selector.fixed_point import EXPONENT_SCALE, LN2_Q36, WEIGHT_TABLE
from selector.philox import Purpose

__all__ = ["draw_kernel", "rows_kernel", "whole_rows_kernel"]

_TOP_K = 32
_MASKED_KEY = -(1 << 63)
_ID_MASK = 0xFFFFFFFF
_STRIDE = 64
_LENGTH = 8
_TILE = _STRIDE * _LENGTH
_GROUP_ROWS = 8
# More groups than this above the bound are worth another halving.
_ENOUGH = 40
_PLACES = 256
_PROPOSAL = int(Purpose.PROPOSAL)
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_PHILOX_0, _PHILOX_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_MIX_0, _MIX_1 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_0, _SHIFT_1, _SHIFT_2 = np.uint64(30), np.uint64(27), np.uint64(31)
_GRID_BITS = np.uint64(24)
_ID_SHIFT, _PLACE_SHIFT, _TOKEN_MARK = np.uint64(25), np.uint64(56), np.uint64(1 << 63)


@compiled
def _lane_maxima(bits, lane_maxima, group_maxima, tiles, tiles_a_group):
    # Lane c of a tile holds its elements c, c + 64, .. c + 448; group c holds lanes c of some tiles in a row.
    # Slices of one length and casts to the narrow type let the inner loop become vector code.
    word = bits.dtype.type
    lowest, turn = word(np.iinfo(bits.dtype).min), word(np.iinfo(bits.dtype).max)
    shift = word(np.iinfo(bits.dtype).bits - 1)
    group_maxima[:] = lowest
    least = turn
    for tile in range(tiles):
        values = bits[tile * _TILE : (tile + 1) * _TILE]
        lanes = lane_maxima[tile * _STRIDE : (tile + 1) * _STRIDE]
        group = tile // tiles_a_group
        groups = group_maxima[group * _STRIDE : (group + 1) * _STRIDE]
        for lane in range(_STRIDE):
            greatest, least_here = lowest, turn
            for step in range(_LENGTH):
                value = values[step * _STRIDE + lane]
                value = word(value ^ word(word(value >> shift) & turn))
                greatest = max(greatest, value)
                least_here = min(least_here, value)
            lanes[lane] = greatest
            groups[lane] = max(groups[lane], greatest)
            least = min(least, least_here)
    return least


@compiled
def _bound(group_maxima, groups):
    # Halving: 32 groups or more reach `low`, always. It ends early once few more than 32 do.
    low, high = np.int64(group_maxima[0]), np.int64(group_maxima[0])
    for group in range(groups):
        low = min(low, np.int64(group_maxima[group]))
        high = max(high, np.int64(group_maxima[group]))
    while low < high:
        middle = low + (high - low + 1) // 2
        word = group_maxima.dtype.type(middle)
        number = np.int32(0)
        for group in range(groups):
            number += np.int32(group_maxima[group] >= word)
        if number < _TOP_K:
            high = middle - 1
        else:
            low = middle
            if number <= _ENOUGH:
                break
    return low


@compiled
def _keep_greatest(bits, places, found, first_token_id, keys, number):
    # Insertion: `keys` holds `number` keys in descending order and stays so; the least falls out of a full one.
    spread = 32 - np.iinfo(bits.dtype).bits
    turn = np.int64(np.iinfo(bits.dtype).max)
    for place in places[:found]:
        value = np.int64(bits[place])
        value = value ^ turn if value < 0 else value
        # Minus zero, the only value of -1, is listed as zero.
        value = value if value != -1 else np.int64(0)
        ordered = (value << spread) | (((1 << spread) - 1) if value < 0 else 0)
        key = (ordered << 32) | (_ID_MASK - (first_token_id + place))
        if number == _TOP_K:
            if key <= keys[_TOP_K - 1]:
                continue
            slot = _TOP_K - 1
        else:
            slot = number
            number += 1
        while slot > 0 and keys[slot - 1] < key:
            keys[slot] = keys[slot - 1]
            slot -= 1
        keys[slot] = key
    return number


@compiled
def _raised(bound, keys, number, spread):
    # What is below the 32nd key so far can't be listed; zero lets minus zero in, which equals it.
    if number == _TOP_K:
        bound = max(bound, keys[_TOP_K - 1] >> (32 + spread))
    return bound if bound != 0 else np.int64(-1)


@compiled
def _scan(bits, bound, first_token_id, lane_maxima, group_maxima, tiles, tiles_a_group, groups, keys):
    # Every element of a lane is written down and counted only when it reaches the bound: no branch to mispredict.
    places = np.empty(_PLACES, np.int64)
    spread = 32 - np.iinfo(bits.dtype).bits
    turn = np.int64(np.iinfo(bits.dtype).max)
    found, number = 0, 0
    for place in range(groups):
        if group_maxima[place] < bound:
            continue
        group, lane = place // _STRIDE, place % _STRIDE
        for tile in range(group * tiles_a_group, min((group + 1) * tiles_a_group, tiles)):
            if lane_maxima[tile * _STRIDE + lane] < bound:
                continue
            for step in range(_LENGTH):
                index = tile * _TILE + step * _STRIDE + lane
                value = np.int64(bits[index])
                places[found] = index
                found += (value ^ ((value >> 63) & turn)) >= bound
            if found > _PLACES - _LENGTH:
                number = _keep_greatest(bits, places, found, first_token_id, keys, number)
                bound, found = _raised(bound, keys, number, spread), 0
    for index in range(tiles * _TILE, bits.shape[0]):
        value = np.int64(bits[index])
        places[found] = index
        found += (value ^ ((value >> 63) & turn)) >= bound
        if found == _PLACES:
            number = _keep_greatest(bits, places, found, first_token_id, keys, number)
            bound, found = _raised(bound, keys, number, spread), 0
    return _keep_greatest(bits, places, found, first_token_id, keys, number)


@compiled
def _write_row(bits, first_token_id, lane_maxima, group_maxima, words):
    # bits: int32 or int16 (n,); lane_maxima, group_maxima: scratch of the same type, n / 8 and 512 long.
    spread = 32 - np.iinfo(bits.dtype).bits
    top = np.int64(np.iinfo(bits.dtype).max) + 1
    infinity = 0x7F800000 >> spread
    tiles = bits.shape[0] // _TILE
    words[:_TOP_K] = _MASKED_KEY
    words[_TOP_K] = 0
    least, greatest, groups, bound = np.int64(0), np.int64(-top), 0, np.int64(-top)
    tiles_a_group = max(1, (tiles + _GROUP_ROWS - 1) // _GROUP_ROWS)
    if tiles > 0:
        least = np.int64(_lane_maxima(bits, lane_maxima, group_maxima, tiles, tiles_a_group))
        groups = (tiles + tiles_a_group - 1) // tiles_a_group * _STRIDE
        for group in range(groups):
            greatest = max(greatest, np.int64(group_maxima[group]))
    for index in range(tiles * _TILE, bits.shape[0]):
        value = np.int64(bits[index])
        value = value ^ ((value >> 63) & (top - 1))
        least, greatest = min(least, value), max(greatest, value)
    if greatest >= infinity or least < -infinity - 1:
        words[_TOP_K] = 1
        return
    if groups > 0:
        bound = _bound(group_maxima, groups)
    # Never list a masked logit; zero lets minus zero in, which equals it.
    bound = max(bound, np.int64(-infinity))
    bound = bound if bound != 0 else np.int64(-1)
    _scan(bits, bound, first_token_id, lane_maxima, group_maxima, tiles, tiles_a_group, groups, words[:_TOP_K])


@compiled
def rows_kernel(bits, first_token_id, words):
    """Write all rows' words; select_rows checks and calls it. bits: int32 or int16 (rows, n), words: int64 (rows, 33).

    A signed integer has the bits of a float32 logit, or of a bfloat16 one.
    """
    tiles = bits.shape[1] // _TILE
    lane_maxima = np.empty(tiles * _STRIDE, bits.dtype)
    group_maxima = np.empty(_GROUP_ROWS * _STRIDE, bits.dtype)
    for row in range(bits.shape[0]):
        _write_row(bits[row], first_token_id, lane_maxima, group_maxima, words[row])


@compiled
def _merged_keys(words, row, keys):
    # Returns how many keys stand in `keys`, in descending order and each once, and the row's status.
    number = 0
    for shard in range(words.shape[0]):
        if words[shard, row, _TOP_K] != 0:
            return 0, 1
        for place in range(_TOP_K):
            key = words[shard, row, place]
            if key == _MASKED_KEY:
                continue
            if key >> 32 >= 0x7F800000 or key >> 32 <= -0x7F800001:
                return 0, 1
            slot = number
            while slot > 0 and keys[slot - 1] < key:
                slot -= 1
            if slot > 0 and keys[slot - 1] == key:
                continue
            for moved in range(number, slot, -1):
                keys[moved] = keys[moved - 1]
            keys[slot] = key
            number += 1
    for place in range(number):
        same = 0
        for other in range(place):
            same += np.int32(keys[other]) == np.int32(keys[place])
        if same:
            return 0, 3
    return number, 0 if number else 2


@compiled
def _write_counts(keys, number, bits, logits, drawn):
    # `bits` and `logits` are one piece of memory under two types.
    for place in range(number):
        ordered = np.int32(keys[place] >> 32)
        bits[place] = ordered if ordered >= 0 else np.int32(ordered ^ np.int32(0x7FFFFFFF))
    total = np.int64(0)
    for place in range(number):
        exponent = (np.float64(logits[0]) - np.float64(logits[place])) * EXPONENT_SCALE
        fixed = np.int64(np.rint(min(exponent, 63.0) * 4294967296.0))
        coarse = WEIGHT_TABLE[(fixed >> 24) & 0xFF]
        first = ((fixed & 0xFFFFFF) * LN2_Q36) >> 30
        second = (first * first) >> 38
        third = (second * first) >> 38
        loss = (first - (second >> 1) + np.int64(np.uint64(third) // np.uint64(6)) + 32) >> 6
        weight = (coarse - ((coarse * loss) >> 32)) >> (fixed >> 32)
        drawn[_TOP_K + place] = weight
        total += weight
    missing = np.int64(1 << 24)
    for place in range(number):
        count = np.int64((np.uint64(drawn[_TOP_K + place]) << _GRID_BITS) // np.uint64(total))
        drawn[_TOP_K + place] = count
        drawn[place] = _ID_MASK - (keys[place] & _ID_MASK)
        missing -= count
    drawn[_TOP_K] += missing


@compiled
def _mixed(word):
    word = (word ^ (word >> _SHIFT_0)) * _MIX_0
    word = (word ^ (word >> _SHIFT_1)) * _MIX_1
    return word ^ (word >> _SHIFT_2)


@compiled
def _write_draw(drawn, number, draw, law):
    cumulative, chosen = np.int64(0), 0
    total = np.uint64(law)
    for place in range(number):
        count = drawn[_TOP_K + place]
        cumulative += count
        chosen += cumulative <= draw
        word = np.uint64(place) << _PLACE_SHIFT | np.uint64(drawn[place]) << _ID_SHIFT | np.uint64(count)
        total += _mixed(word)
    token = drawn[chosen]
    total += _mixed(_TOKEN_MARK | np.uint64(number) << _HALF | (np.uint64(token) & _WORD))
    drawn[2 * _TOP_K] = number
    drawn[2 * _TOP_K + 1] = token
    drawn[2 * _TOP_K + 2] = np.int64(_mixed(total))
    drawn[2 * _TOP_K + 3] = 0


@compiled
def _draw_row(words, row, draw, law, keys, bits, logits, drawn):
    number, status = _merged_keys(words, row, keys)
    number = min(number, _TOP_K)
    drawn[number:_TOP_K] = -1
    drawn[_TOP_K + number : 2 * _TOP_K] = 0
    if status == 0:
        _write_counts(keys, number, bits, logits, drawn)
        _write_draw(drawn, number, draw, law)
    else:
        drawn[2 * _TOP_K] = 0
        drawn[2 * _TOP_K + 1] = -1
        drawn[2 * _TOP_K + 2] = 0
        drawn[2 * _TOP_K + 3] = status


@compiled
def _draw24(seed, request, position):
    # Word 0 of Philox4x32-10, whose top 24 bits are the proposal's draw.
    word0, word1 = np.uint64(request) & _WORD, np.uint64(request) >> _HALF
    word2, word3 = np.uint64(position), np.uint64(_PROPOSAL)
    key0, key1 = np.uint64(seed) & _WORD, np.uint64(seed) >> _HALF
    for _ in range(10):
        product0, product1 = word0 * _PHILOX_0, word2 * _PHILOX_1
        word0, word1 = (product1 >> _HALF) ^ word1 ^ key0, product1 & _WORD
        word2, word3 = (product0 >> _HALF) ^ word3 ^ key1, product0 & _WORD
        key0, key1 = (key0 + _WEYL_0) & _WORD, (key1 + _WEYL_1) & _WORD
    return np.int64(word0 >> np.uint64(8))


@compiled
def draw_kernel(words, names, law, drawn):
    """Merge and draw all rows; draw_rows checks and calls it.

    words: int64 (shards, rows, 33); names: int64 (rows, 3), or (rows, 1) with the draws themselves; law: the law's
    number, uint64; drawn: int64 (rows, 68), overwritten.
    """
    keys = np.empty(words.shape[0] * _TOP_K, np.int64)
    bits = np.empty(_TOP_K * words.shape[0], np.int32)
    logits = bits.view(np.float32)
    for row in range(words.shape[1]):
        # One column holds the draws themselves, three hold their names.
        draw = names[row, 0] if names.shape[1] == 1 else _draw24(names[row, 0], names[row, 1], names[row, 2])
        _draw_row(words, row, draw, law, keys, bits, logits, drawn[row])


@compiled
def whole_rows_kernel(bits, names, law, words, drawn):
    """Select, merge and draw rows that hold the whole vocabulary; select_and_draw checks and calls it.

    bits: int32 or int16 (rows, n); words: int64 (1, rows, 33), overwritten; the rest as draw_kernel has it.
    """
    rows_kernel(bits, np.int64(0), words[0])
    draw_kernel(words, names, law, drawn)
