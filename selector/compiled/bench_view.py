"""What a person reads of the benchmark: a ratio table, the aims, the device's table, what has no number. Never prints.

Source: DESIGN section 7.
"""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from selector.compiled.bench_contenders import FLOOR, NUMPY, OURS, TORCH
from selector.compiled.bench_result import AimOutcome, BenchResult, Quartiles, ShapeTimes
from selector.kernels.device_records import DeviceTime
from selector.kernels.device_view import OBJECTIVE_US, TWO_LAUNCH_US, device_lines

__all__ = ["bench_data", "bench_lines", "bench_tables"]


def bench_tables(result: BenchResult) -> list[Table]:
    """Return the tables of what was measured; none when the gate found a difference."""
    tables = [_cpu_table(result.shapes)] if result.shapes else []
    return tables + ([_device_table(result.device.times)] if result.device.times else [])


def _new_table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def _cpu_table(shapes: tuple[ShapeTimes, ...]) -> Table:
    columns = ("round", "ours us", "read us", "ours/read", "torch us", "torch/ours", "numpy/ours")
    table = _new_table("CPU, one core, float32; us a round, medians; ratios within samples", columns)
    for shape in shapes:
        times = shape.microseconds
        table.add_row(
            shape.name.replace("depth ", "d"),
            f"{times[OURS].median:,.1f}",
            f"{times[FLOOR].median:,.1f}",
            _spread(shape.ratios[f"{OURS} / {FLOOR}"]),
            f"{times[TORCH].median:,.0f}",
            _spread(shape.ratios[f"{TORCH} / {OURS}"]),
            f"{shape.ratios[f'{NUMPY} / {OURS}'].median:,.0f}",
        )
    return table


def _spread(ratio: Quartiles) -> str:
    return f"{ratio.median:.2f} ({ratio.lower:.2f}-{ratio.upper:.2f})"


def _device_table(times: tuple[DeviceTime, ...]) -> Table:
    low, high = TWO_LAUNCH_US
    title = (
        f"Device; us a round, exchange excluded (plan: objective {OBJECTIVE_US:g} us at depth 5, "
        f"its two-launch selector {low:g}-{high:g} us)"
    )
    table = _new_table(title, ("round", "contender", "mode", "L2", "us", "lower-upper"))
    for each in times:
        name = f"B{each.batch} d{each.depth} V {each.vocabulary:,} TP{each.shards}"
        spread = f"{each.lower:.2f}-{each.upper:.2f}"
        table.add_row(name, each.contender, each.mode, each.cache, f"{each.median:.2f}", spread)
    return table


def bench_lines(result: BenchResult) -> list[str]:
    """Return the sentences below the tables: gate, aims, what has no number, what it ran on."""
    environment = result.environment
    if result.difference is not None:
        return [f"NOT BIT-IDENTICAL, so nothing was timed: {result.difference}"]
    lines = ["Compiled code and numpy reference agree bit for bit on every row that was timed."]
    for aim in result.aims:
        ratio = "" if aim.ratio is None else f": {aim.ratio:.2f} x"
        word = aim.outcome.value if aim.outcome is not AimOutcome.NOT_MET else aim.outcome.value.upper()
        lines.append(f"Aim {word}{ratio}; {aim.aim}.")
    lines += device_lines(result.device)
    lines += [f"Not measured: {each.name}: {each.reason}." for each in result.not_measured]
    load = " and ".join(
        "unknown" if value is None else f"{value:.2f}" for value in (environment.load_before, environment.load_after)
    )
    versions = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    lines.append(
        f"{environment.processor}, {environment.cores} cores, load {load} before and after, Python "
        f"{environment.python}, {versions}, {environment.date}."
    )
    what = "compiled" if result.functions_built else "loaded from the cache"
    lines.append(f"Machine code was {what} in {result.warm_up_seconds:.2f} s.")
    return lines


def bench_data(result: BenchResult) -> dict[str, Any]:
    """Return the whole result as plain data for JSON, with the gate's word and the exit code."""
    data = result.model_dump(mode="json")
    return {"gate_passed": result.gate_passed, "exit_code": result.exit_code, **data}
