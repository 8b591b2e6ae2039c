"""The device's times as plain lines, for a machine that has nothing but numpy, torch and triton. Never prints.

Source: DESIGN section 7; the plan's objective and what it reports for its present two-launch selector.
"""

from __future__ import annotations

from typing import Final

from selector.kernels.device_records import DeviceBench
from selector.kernels.exact_contenders import EXACT

__all__ = ["OBJECTIVE_US", "TWO_LAUNCH_US", "device_lines", "device_table_lines"]

OBJECTIVE_US: Final = 50.0
"""The plan's objective for the selector of a depth-5 round."""
TWO_LAUNCH_US: Final = (155.0, 209.0)
"""What the plan reports for its present two-launch selector at depth 5."""
PLAN_DEPTH: Final = 5


def device_lines(device: DeviceBench) -> list[str]:
    """Return the sentences: the device, a gate that failed, and each depth-5 round beside the plan's objective."""
    if device.difference is not None:
        return [f"DEVICE NOT BIT-IDENTICAL, so nothing was timed there: {device.difference}"]
    if not device.times:
        return []
    lines = [f"Device: {device.device}; it reads {device.read_gb_s or 0.0:,.0f} GB/s."]
    for each in device.times:
        if each.contender == EXACT and (each.depth, each.mode, each.cache) == (PLAN_DEPTH, "graph", "warm"):
            word = "within" if each.median <= OBJECTIVE_US else "ABOVE"
            lines.append(
                f"B{each.batch} V {each.vocabulary:,}: {each.median:.1f} us a depth-{PLAN_DEPTH} round in a graph, "
                f"exchange excluded, {word} the plan's objective of {OBJECTIVE_US:g} us."
            )
    return lines


def device_table_lines(device: DeviceBench) -> list[str]:
    """Return one line a time, aligned, with a head; and one for each contender without numbers."""
    rows = [("round", "contender", "mode", "L2", "us", "lower", "upper")]
    for each in device.times:
        name = f"B{each.batch} d{each.depth} V {each.vocabulary:,}"
        numbers = (f"{each.median:.2f}", f"{each.lower:.2f}", f"{each.upper:.2f}")
        rows.append((name, each.contender, each.mode, each.cache, *numbers))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    missing = [f"Not measured: {each.contender}: {each.reason}." for each in device.missing]
    return [*(lines if device.times else []), *missing]
