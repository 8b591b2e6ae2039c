"""The command line: one Typer app, one sub-app a folder; the only place that prints.

A command parses, calls one function of a package and returns an `Outcome`; `main` prints it,
writes --json and turns every error into one sentence on stderr and an exit code.
Heavy packages are imported inside commands, so that --help answers at once.
Source: DESIGN section 7.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text
from typer.exceptions import TyperException

from ranks.errors import BAD_DATA, CANNOT_WRITE, INTERNAL, INTERRUPTED, USAGE, UserError
from window.errors import WindowError

if TYPE_CHECKING:
    from window.progress import ProgressEvent

__all__ = ["app", "main"]


PLAIN_WIDTH: Final = 120
"""Columns of a table that no terminal limits."""


@dataclass(slots=True)
class Invocation:
    """Root options of this run; kept outside Typer's context because errors outlive it."""

    debug: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command hands back: lines and tables for people, data for --json and the exit code."""

    lines: Sequence[RenderableType]
    data: Mapping[str, Any]
    json_file: Path | None = None
    exit_code: int = 0


class ResultConsole(Console):
    """Leaves a closed pipe to its user; rich's own would end the process with code 1."""

    def on_broken_pipe(self) -> None:
        """Say that the reader has gone. Raises BrokenPipeError."""
        raise BrokenPipeError


class ProgressView:
    """Shows where a window stands on stderr: a live panel on a terminal, a line a milestone elsewhere."""

    def __init__(self) -> None:
        from window.live_view import LiveView, PlainLines

        self._console = ResultConsole(stderr=True, highlight=False)
        self._panel, self._plain, self._unread = LiveView(), PlainLines(), False
        self._live = Live(
            console=self._console, get_renderable=self._panel.render, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> ProgressView:
        """Begin to show; an empty live panel must not clutter a log."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the terminal back, whatever happened."""
        self._live.stop()

    def show(self, event: ProgressEvent) -> None:
        """Show one event; a reader that has gone ends the view and nothing else."""
        self._panel.take(event)
        line = self._plain.line(event)
        if line is None or self._console.is_terminal or self._unread:
            return
        try:
            self._console.print(Text(line), soft_wrap=True)
        except OSError:
            self._unread = True


app: Final = typer.Typer(
    name="specbed",
    help="Test bed for speculative-decoding verifiers on two tensor-parallel ranks, and the driver of one A/B window.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


window_app: Final = typer.Typer(help="The A/B window: registration, blocks, decision, report.", no_args_is_help=False)
app.add_typer(window_app, name="window")


@window_app.callback(invoke_without_command=True)
def window_root(context: typer.Context) -> None:
    """Without a command print the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _check_json_file(path: Path | None) -> Path | None:
    """Refuse an unwritable --json before the work starts, not after it."""
    if path is None:
        return None
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"--json {path} cannot be written: name a file in a writable folder.", CANNOT_WRITE)
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the result as JSON.", callback=_check_json_file),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"specbed {importlib.metadata.version('specbed')}")
        except importlib.metadata.PackageNotFoundError:
            typer.echo("specbed from a source tree that is not installed (make install)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when the program itself fails.")] = False,
) -> None:
    """Take the root options; without a command print the help."""
    del version
    context.obj.debug = debug
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def doctor(json_file: JsonFile = None) -> Outcome:
    """Show what is installed and which profiles can run here, or why not."""
    from ranks.doctor import gather_machine_facts, report_data, report_lines

    machine = gather_machine_facts()
    return Outcome(report_lines(machine), report_data(machine), json_file)


@window_app.command()
def rehearse(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that gets the window's bundle.")],
    profile: Annotated[str, typer.Option("--profile", help="How the ranks are placed: see doctor.")] = "cpu",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all draws, registered.")] = 20_260,
    run_seconds: Annotated[float, typer.Option("--run-seconds", help="Longest decode run in seconds.")] = 3.5,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="Another checkpoint of the same layout.")
    ] = None,
    json_file: JsonFile = None,
) -> Outcome:
    """Run one reduced A/B window on the embedded model, from registration to report."""
    from window.rehearsal_inputs import RehearsalOptions
    from window.rehearse import rehearse as rehearse_window
    from window.summary import result_data, summary_lines, summary_table

    options = RehearsalOptions(out_folder=out, profile=profile, seed=seed, run_budget_ns=_nanoseconds(run_seconds))
    if weights is not None:
        options = replace(options, weights_path=weights)
    with ProgressView() as view:
        result = rehearse_window(options, view.show)
    table = summary_table(result.sealed, result.decision)
    lines: list[RenderableType] = [table, *summary_lines(result.sealed, result.decision)]
    lines += [f"Exit code: {int(result.exit_code)} ({result.exit_code.name})", f"Report: {result.report_path}"]
    return Outcome(lines, result_data(result), json_file, int(result.exit_code))


selector_app: Final = typer.Typer(help="The draft law: vectors, certificate, kernels, speed.", no_args_is_help=False)
app.add_typer(selector_app, name="selector")


@selector_app.callback(invoke_without_command=True)
def selector_root(context: typer.Context) -> None:
    """Without a command print the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@selector_app.command()
def check(
    vectors: Annotated[Path, typer.Option("--vectors", metavar="FILE", help="Rows with their law, as JSON.")],
    json_file: JsonFile = None,
) -> Outcome:
    """Hold every backend that runs here against a file of vectors, bit for bit."""
    from selector.backends.vector_check import check_data, check_lines, check_vectors
    from selector.law_vectors import read_vectors

    try:
        read = read_vectors(vectors.read_bytes())
    except OSError as error:
        raise UserError(f"--vectors {vectors} cannot be read: {error.strerror or error}.", BAD_DATA) from error
    except ValueError as error:
        raise UserError(f"--vectors {vectors} is no file of vectors: {error}.", BAD_DATA) from error
    result = check_vectors(read, on_progress=_say)
    return Outcome(check_lines(result), check_data(result), json_file, result.exit_code)


@selector_app.command()
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Few shapes, to see that it works; no figures to quote.")
    ] = False,
    json_file: JsonFile = None,
) -> Outcome:
    """Time the selection beside torch and beside reading the row once, after proving equal bits."""
    from datetime import UTC, datetime

    from selector.compiled.bench_run import BenchOptions, run_bench
    from selector.compiled.bench_shapes import FULL_SHAPES, QUICK_SHAPES
    from selector.compiled.bench_view import bench_data, bench_lines, bench_tables

    options = BenchOptions(date=f"{datetime.now(UTC):%Y-%m-%d}", shapes=QUICK_SHAPES if quick else FULL_SHAPES)
    result = run_bench(options, lambda done, total, what: _say(f"{done}/{total} {what}"))
    return Outcome([*bench_tables(result), *bench_lines(result)], bench_data(result), json_file, result.exit_code)


ranks_app: Final = typer.Typer(help="Two ranks: what they emit, and whether it is the law.", no_args_is_help=False)
app.add_typer(ranks_app, name="ranks")


@ranks_app.callback(invoke_without_command=True)
def ranks_root(context: typer.Context) -> None:
    """Without a command print the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@ranks_app.command()
def law(
    profile: Annotated[str, typer.Option("--profile", help="How the ranks are placed: see doctor.")] = "cpu",
    depth: Annotated[int, typer.Option("--depth", min=1, max=8, help="Drafted tokens in a round.")] = 5,
    samples: Annotated[int, typer.Option("--samples", min=100, help="Registered seeds a prefix and arm.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all draws, registered.")] = 4103,
    weights: Annotated[
        Path | None, typer.Option("--weights", metavar="FILE", help="Another checkpoint of the same layout.")
    ] = None,
    json_file: JsonFile = None,
) -> Outcome:
    """Compare one round on real ranks with its exact law, for both arms and four frozen prefixes."""
    from ranks.law_run import run_law_check
    from ranks.law_view import finding_line, findings_data, law_exit_code, power_lines
    from window.law_inputs import law_request

    request = law_request(profile, weights, depth, samples, seed)
    findings = run_law_check(request, lambda finding: _say(finding_line(finding)))
    return Outcome(power_lines(findings), findings_data(findings), json_file, law_exit_code(findings))


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _nanoseconds(run_seconds: float) -> int:
    if not 0.1 <= run_seconds <= 30:
        raise UserError(f"--run-seconds is {run_seconds}: a decode run lasts from 0.1 to 30 seconds.")
    return round(run_seconds * 1e9)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` defaults to the process's own."""
    invocation = Invocation()
    earlier_handlers = {name: signal.signal(name, _stop_like_ctrl_c) for name in _stop_signals()}
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        return _finish(app(args=words, prog_name="specbed", standalone_mode=False, obj=invocation))
    except (UserError, WindowError) as error:
        return _fail(error.sentence, int(error.exit_code))
    except TyperException as error:
        return _fail(f"{_ended(error.format_message())} {_help_hint(error)}", USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return _finish(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the outermost border: every fault becomes a sentence and code 70
        if invocation.debug:
            traceback.print_exc()
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(f"internal error, {detail} (specbed --debug ... shows where).", INTERNAL)
    finally:
        for name, handler in earlier_handlers.items():
            signal.signal(name, handler)


def _finish(result: Outcome | int | None) -> int:
    """Print a command's outcome; a bare number is an exit that Typer made (help, version, Ctrl-C)."""
    if isinstance(result, Outcome):
        if result.json_file is not None:
            _write_json(result.json_file, result.data)
        _print_lines(result.lines)
        return int(result.exit_code)
    if result == INTERRUPTED:
        return _fail("stopped by Ctrl-C or SIGTERM.", INTERRUPTED)
    return int(result or 0)


def _print_lines(lines: Sequence[RenderableType]) -> None:
    console = ResultConsole(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    try:
        for line in lines:
            console.print(line, markup=False, soft_wrap=isinstance(line, str))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (`specbed doctor | head`): the command did its work, so its exit code stands.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str, exit_code: int) -> int:
    print(f"specbed: {sentence}", file=sys.stderr)
    return exit_code


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def _help_hint(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"Try: {context.command_path if context is not None else 'specbed'} --help"


def _stop_signals() -> tuple[signal.Signals, ...]:
    """Return what stops a command besides Ctrl-C; a run under nohup keeps ignoring its terminal's end."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return (signal.SIGTERM,) if ignored else (signal.SIGTERM, signal.SIGHUP)


def _stop_like_ctrl_c(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write the whole file or none of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"--json {path} cannot be written: {error.strerror or error}.", CANNOT_WRITE) from error
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
