"""The `rollq` command: parses the line, runs one command, and turns every foreseen error into one
clear line.

Exit codes: 0 done; 1 it failed; 2 the command line, a setting or an address is wrong; 128 + n when
signal n ended it. `ROLLQ_DEBUG=1` shows tracebacks. Starts in milliseconds, because only the
command on the line is imported. Other packages add commands through the entry-point group
`rollq.commands`: a function that takes the subparsers.
"""

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from rollq import __version__
from rollq.commands.flags.help import EPILOG, SUMMARIES
from rollq.commands.flags.parser import Commands, Parser
from rollq.errors import RollqError, SettingsError
from rollq.pip_extras import install_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DESCRIPTION = "Durable, token-exact rollouts of tool-use agents, as a task queue on Redis."
OWN_COMMANDS = {
    "redis": "redis_server",
    "submit": "submit",
    "pull": "pull",
    "eval": "evaluate",
    "stats": "stats",
    "top": "top",
    "metrics": "metrics",
    "show": "show",
    "jobs": "jobs",
    "engines": "engines",
}
"""Commands of this package, and the module in `rollq.commands` that adds each."""
OTHER_COMMANDS = {
    "view": "view",
    "demo": "demo",
    "engine": "engine",
    "worker": "worker",
    "audit": "worker",
    "doctor": "worker",
    "env": "worker",
}
"""Commands that rollq_worker and rollq_view add, and the extra that brings what each needs."""
GROUP = "rollq.commands"
"""Entry points of commands: `name = module:add`."""


def parser(line: Sequence[str] | None = None) -> Parser:
    """The parser for this command line, or for any line. It knows only the command that the line
    names; when it names none, it has the names of all commands.

    Raises SettingsError when the named command cannot be loaded.
    """
    top = Parser(
        prog="rollq",
        usage="rollq [-h] [--version] COMMAND ...",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    top.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    top.add_argument(
        "--version", action="version", version=f"rollq {__version__}", help=argparse.SUPPRESS
    )
    if line is not None and line[:1] == ["--version"]:
        return top
    # Help has a list of its own; what completes lines in a shell reads this one.
    commands = top.add_commands(prog="rollq", help=argparse.SUPPRESS if line is not None else None)
    named = next((word for word in line or () if not word.startswith("-")), "")
    if named in OWN_COMMANDS:
        _add_own(commands, [OWN_COMMANDS[named]])
        return top
    others = _other_commands()
    if named in others:
        _add_other(commands, named, others[named])
    elif line is None:
        _add_own(commands, dict.fromkeys(OWN_COMMANDS.values()))
        _add_others(commands, others)
    else:
        top.epilog = EPILOG + _add_names(commands, others)
    return top


def _add_own(commands: Commands, modules: Iterable[str]) -> None:
    for module in modules:
        import_module(f"rollq.commands.{module}").add(commands)


def _add_names(commands: Commands, others: "Mapping[str, EntryPoint | None]") -> str:
    """Adds rollq's commands by name only, and loads those of other packages, whose summaries are
    not known here.

    Returns the lines of the help about both.
    """
    for name in SUMMARIES:
        commands.add_parser(name)
    missing = [name for name in SUMMARIES if name in others and others[name] is None]
    lines = [f"not installed: {name} ({install_line(OTHER_COMMANDS[name])})" for name in missing]
    _add_others(commands, {name: point for name, point in others.items() if name not in SUMMARIES})
    theirs = [name for name in commands.parsers if name not in SUMMARIES]
    lines += [f"of another package: {name}  {commands.summaries[name]}" for name in theirs]
    return "".join(f"\n{line}" for line in lines)


def _other_commands() -> "dict[str, EntryPoint | None]":
    """Entry points of other packages' commands, by name. None stands for one of OTHER_COMMANDS that
    is not there.
    """
    from importlib.metadata import entry_points

    points = {point.name: point for point in entry_points(group=GROUP)}
    others = {name: points[name] for name in sorted(points) if name not in OWN_COMMANDS}
    return dict.fromkeys(OTHER_COMMANDS) | others


def _add_others(commands: Commands, others: "Mapping[str, EntryPoint | None]") -> None:
    """Adds the commands of other packages. One that cannot be loaded is listed with the reason; the
    others still work.
    """
    for name, point in others.items():
        try:
            _add_other(commands, name, point)
        except SettingsError as e:
            if name not in commands.parsers:
                commands.add_parser(name, help=str(e))


def _add_other(commands: Commands, name: str, point: "EntryPoint | None") -> None:
    """Adds one command. Raises SettingsError, with the remedy, when it is not installed or cannot
    be loaded.
    """
    extra = OTHER_COMMANDS.get(name)
    try:
        if point is None:
            raise ModuleNotFoundError("its package is not installed")
        point.load()(commands)
    except Exception as e:  # another package may raise anything
        remedy = f"update or uninstall {point and point.dist and point.dist.name}"
        if extra:
            remedy = install_line(extra)
        reason = " ".join(str(e).split())
        raise SettingsError(
            f"`rollq {name}` cannot be loaded ({type(e).__name__}: {reason}): {remedy}"
        ) from e


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
            setattr(sys, f"__{name}__", getattr(sys, name))  # Celery logs there
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):  # what the terminal cannot print is escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:  # `rollq stats | head`
        code = 1
    return _flush(code)


def _run(line: Sequence[str]) -> int:
    try:
        args = parser(line).parse_args(line)
        code: int = args.run(args)
        return code
    except SystemExit as e:  # argparse has printed its message
        return e.code if isinstance(e.code, int) else 2
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as e:
        return _report_failure(*_message(e))


def _message(error: BaseException) -> tuple[str, int]:
    """The line that says what failed, and the exit code."""
    name = type(error).__name__
    if isinstance(error, RollqError):
        return str(error) or name, 2 if isinstance(error, SettingsError) else 1
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted: {error}" if error.args else "interrupted", 130
    if isinstance(error, OSError):
        return f"{name}: {error}", 1
    # An unforeseen error is a bug, and still reported in one line.
    return f"{name}: {error} (ROLLQ_DEBUG=1 shows where)", 1


def _report_failure(message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # standard error is closed or full
        if os.environ.get("ROLLQ_DEBUG"):
            traceback.print_exc()
        print(f"rollq: {message}", file=sys.stderr)
    return code


def _flush(code: int) -> int:
    """Writes out what is buffered, and returns the exit code. Python's own flush at exit could only
    print `Exception ignored`.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as e:
            # Else the rest would fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if not code and not isinstance(e, BrokenPipeError):
                _report_failure(f"cannot write to standard output: {e.strerror}", 1)
            code = code or 1
    return code
