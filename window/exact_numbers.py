"""Rationals for deciding and rounded decimals for reading.

A threshold is met or not met exactly; only what is printed is rounded. Must never convert to a
binary float. Source: plan, "frozen decision"; the rule compares products of rationals.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction

__all__ = [
    "decimal_text",
    "geometric_gain_text",
    "log_decimal",
    "milliseconds_text",
    "order_statistic",
    "percent_text",
    "product",
    "quantile_rank",
]

WORKING = Context(prec=40)


def product(values: Sequence[Fraction]) -> Fraction:
    """Return the exact product, 1 for no values."""
    result = Fraction(1)
    for value in values:
        result *= value
    return result


def quantile_rank(count: int, level: Fraction) -> int:
    """Return the 1-based rank of the inverted-CDF quantile: the least k with k/count >= level. Raises ValueError."""
    if count < 1 or not 0 < level <= 1:
        raise ValueError(f"a quantile needs at least one value and a level in (0, 1], not {count} and {level}")
    scaled = level * count
    return -(-scaled.numerator // scaled.denominator)


def order_statistic(values: Sequence[int], level: Fraction) -> int:
    """Return the inverted-CDF quantile of some integers; always one of them. Raises ValueError when empty."""
    return sorted(values)[quantile_rank(len(values), level) - 1]


def log_decimal(value: Fraction) -> Decimal:
    """Return ln(value) to 40 digits, the same on every machine. `value` > 0."""
    with localcontext(WORKING):
        return Decimal(value.numerator).ln() - Decimal(value.denominator).ln()


def decimal_text(value: Fraction | Decimal, places: int = 4) -> str:
    """Return a decimal rounded half to even at `places` digits; never in exponent form."""
    with localcontext(WORKING):
        number = value if isinstance(value, Decimal) else Decimal(value.numerator) / Decimal(value.denominator)
        rounded = number.quantize(Decimal(1).scaleb(-places))
        return f"{rounded if rounded else abs(rounded):f}"


def percent_text(ratio: Fraction, places: int = 2) -> str:
    """Return ratio - 1 as a signed percentage, for example +5.00 %."""
    return _signed_percent(decimal_text((ratio - 1) * 100, places))


def geometric_gain_text(ratio_product: Fraction, count: int, places: int = 2) -> str:
    """Return the count-th root of a product of ratios, minus 1, as a signed percentage. `ratio_product` > 0."""
    with localcontext(WORKING):
        gain = ((log_decimal(ratio_product) / count).exp() - 1) * 100
    return _signed_percent(decimal_text(gain, places))


def _signed_percent(text: str) -> str:
    """Return a number text with its sign and the percent mark."""
    return f"{text} %" if text.startswith("-") else f"+{text} %"


def milliseconds_text(nanoseconds: int | Fraction, places: int = 2) -> str:
    """Return nanoseconds as milliseconds."""
    return decimal_text(Fraction(nanoseconds) / 1_000_000, places)
