"""The `rollq` command: parses the line, runs one command, and turns every foreseen error into one clear line.

Exit codes: 0 done; 1 it failed; 2 the line, a setting or an address is wrong; 128 + n when signal n ended it.
`ROLLQ_DEBUG=1` shows tracebacks. Starts in milliseconds: each command imports what it needs when it runs.
Other packages add commands through the entry-point group `rollq.commands`: a function that takes the subparsers.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, NoReturn

from rollq import __version__
from rollq.commands import dead_letters, evaluate, pull, redis_server, run_file, show, stats, submit
from rollq.commands.arguments import Commands
from rollq.errors import RollqError, SettingsError
from rollq.extras import install_line

DESCRIPTION = "Durable, token-exact rollouts of multi-turn tool-use agents, as a task queue on Redis."
EPILOG = """\
Try everything on this machine:  rollq demo
The parts, in the foreground:    rollq redis, rollq engine, rollq worker
Produce and consume:             rollq submit, rollq pull
Measure a policy:                rollq eval
Look, and prove the tokens:      rollq stats, rollq show, rollq audit
Check what a run stands on:      rollq doctor
"""


GROUP = "rollq.commands"
"""Entry points of commands: `name = module:add`."""
WORKER_COMMANDS = {"demo": "demo", "engine": "engine", "worker": "worker", "audit": "worker", "doctor": "worker"}
"""Commands that rollq_worker adds, and the extra that brings what each needs."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong line in one line, and accepts no abbreviated flags: they would change meaning as flags come."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type]

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        if args is not None:
            run_file.apply(self, args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rollq: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="rollq", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"rollq {__version__}")
    commands: Any = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (redis_server, submit, pull, evaluate, stats, show, dead_letters):
        module.add(commands)
    _add_entry_points(commands)
    return top


def _add_entry_points(commands: Commands) -> None:
    found = {point.name: point for point in entry_points(group=GROUP)}
    for name in (*WORKER_COMMANDS, *sorted(found.keys() - WORKER_COMMANDS.keys())):
        try:
            found[name].load()(commands)
        except (KeyError, ImportError) as e:
            _add_missing(commands, name, e)


def _add_missing(commands: Commands, name: str, error: Exception) -> None:
    """A command that cannot be loaded says what to install, whatever its arguments."""
    extra = WORKER_COMMANDS.get(name)
    remedy = install_line(extra) if extra else f"{type(error).__name__}: {error}"
    parser = commands.add_parser(name, help=f"(not installed: {remedy})")
    message = f"rollq: `rollq {name}` is not installed: {remedy}\n"
    parser.parse_known_args = lambda *_: parser.exit(2, message)  # type: ignore[assignment]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process lives)
    try:
        code = _run(argv)
        sys.stdout.flush()  # here, so that a reader that went away is noticed here
        return code
    except BrokenPipeError:  # `rollq stats | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = parser().parse_args(argv)
        code: int = args.run(args)
        return code
    except SystemExit as e:  # argparse has printed its message
        return e.code if isinstance(e.code, int) else 2
    except RollqError as e:
        return _failed(f"{e}" or type(e).__name__, 2 if isinstance(e, SettingsError) else 1)
    except KeyboardInterrupt as e:
        return _failed(f"interrupted: {e}" if e.args else "interrupted", 130)
    except BrokenPipeError:
        raise
    except OSError as e:
        return _failed(f"{type(e).__name__}: {e}", 1)
    except Exception as e:  # the boundary: an unforeseen error is a bug, and still one line
        return _failed(f"{type(e).__name__}: {e} (ROLLQ_DEBUG=1 shows where)", 1)


def _failed(message: str, code: int) -> int:
    if os.environ.get("ROLLQ_DEBUG"):
        traceback.print_exc()
    print(f"rollq: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
