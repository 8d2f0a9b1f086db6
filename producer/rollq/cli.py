"""The `rollq` command: parses the line, runs one command, and turns every foreseen error into one clear line.

Exit codes: 0 done; 1 it failed; 2 the line, a setting or an address is wrong; 128 + n when signal n ended it.
`ROLLQ_DEBUG=1` shows tracebacks. Starts in milliseconds: each command imports what it needs when it runs.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from rollq import __version__
from rollq.commands import (
    audit,
    cancel,
    dead,
    demo,
    doctor,
    drop,
    engine,
    evaluate,
    pull,
    redis_server,
    requeue,
    runfile,
    show,
    stats,
    submit,
    worker,
)
from rollq.errors import RollqError, SettingsError

DESCRIPTION = "Durable, token-exact rollouts of multi-turn tool-use agents, as a task queue on Redis."
EPILOG = """\
Try everything on this machine:  rollq demo
The parts, in the foreground:    rollq redis, rollq engine, rollq worker
Produce and consume:             rollq submit, rollq pull
Measure a policy:                rollq eval
Look, and prove the tokens:      rollq stats, rollq show, rollq audit
Check what a run stands on:      rollq doctor
"""


class Parser(argparse.ArgumentParser):
    """Reports a wrong line in one line, and accepts no abbreviated flags: they would change meaning as flags come."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type]

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        if args is not None:
            runfile.apply(self, args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rollq: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="rollq", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"rollq {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    produce, look = (submit, pull, evaluate, requeue, drop, cancel), (stats, show, dead, audit, doctor)
    for command in (demo, redis_server, engine, worker, *produce, *look):
        command.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process lives)
    try:
        args = parser().parse_args(argv)
    except SystemExit as e:  # argparse has said what there was to say
        return e.code if isinstance(e.code, int) else 2
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except RollqError as e:
        return _failed(f"{e}" or type(e).__name__, 2 if isinstance(e, SettingsError) else 1)
    except KeyboardInterrupt as e:
        return _failed(f"interrupted: {e}" if e.args else "interrupted", 130)
    except BrokenPipeError:  # `rollq stats | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as e:
        return _failed(f"{type(e).__name__}: {e}", 1)
    except Exception as e:  # the boundary: what nobody foresaw is a bug, and still one line
        return _failed(f"{type(e).__name__}: {e} (ROLLQ_DEBUG=1 shows where)", 1)


def _failed(message: str, code: int) -> int:
    if os.environ.get("ROLLQ_DEBUG"):
        traceback.print_exc()
    print(f"rollq: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
