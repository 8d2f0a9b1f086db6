"""The parser of the command line: a wrong line ends in one line, which names what is spelled almost
the same.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from rollq.commands.flags.help import SUMMARIES, elsewhere, examples


class Parser(argparse.ArgumentParser):
    """Flags cannot be abbreviated, because a new flag could then change what a command
    line means.
    """

    def __init__(self, **options: Any) -> None:
        self.flags: dict[str, argparse.Action] = {}
        """All flags, by each of their names."""
        self.places: list[str] = []
        """Names of the arguments that are not flags, as help has them."""
        self.keys: Sequence[str] = ()
        """Keys that `--set` takes."""
        self.more_help: Callable[[], str] = str
        """Text of --help between the flags and the examples."""
        self.commands: Commands | None = None
        super().__init__(**{"allow_abbrev": False, **options})

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        action = super().add_argument(*names, **options)
        self.flags |= dict.fromkeys(action.option_strings, action)
        if not action.option_strings:
            self.places.append(str(action.metavar))
        return action

    def add_commands(self, **options: Any) -> "Commands":
        """Makes this the parser of several commands."""
        self.commands = Commands(self.add_subparsers(metavar="COMMAND", required=True, **options))
        return self.commands

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        if args is not None:
            self._check_names(args)
        return super().parse_known_args(args, namespace)

    def _check_names(self, words: Sequence[str]) -> None:
        """Refuses an unknown command or flag before argparse misses what it needs."""
        if self.commands:
            self._check_command(self.commands, words)
            return
        for word in takewhile(lambda word: word != "--", words):
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in self.flags:
                self._refuse(flag)

    def _check_command(self, commands: "Commands", words: Sequence[str]) -> None:
        if not words:
            self.print_help(sys.stderr)
            self.exit(2)
        name = next((word for word in words if not word.startswith("-")), None)
        if name is not None and name not in commands.parsers:
            other = elsewhere(name) if self.prog == "rollq" else ""
            hint = f": write {other}" if other else near(name, commands.parsers)
            self.error(f"there is no command {name!r}{hint}")

    def _refuse(self, flag: str) -> NoReturn:
        place = flag[2:].upper()
        if any(place in places.split("|") for places in self.places):
            self.error(f"{place} is not a flag of this command: write {self.prog} {place}")
        word = flag[2:].replace("-", "_")
        for key in self.keys:
            if key.rpartition(".")[2] == word:
                self.error(f"there is no flag {flag}: write --set {key}=VALUE")
        self.error(f"there is no flag {flag}{near(flag, self.flags)}")

    def format_help(self) -> str:
        return super().format_help() + self.more_help() + examples(self.prog.partition(" ")[2])

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rollq: {message} (see {self.prog} --help)\n")


class Commands:
    """The commands of a parser, to which `add_parser` adds one."""

    def __init__(self, added: Any) -> None:
        self._added = added
        """Result of argparse's `add_subparsers`."""
        self.parsers: dict[str, Parser] = {}
        self.summaries: dict[str, str] = {}

    def add_parser(self, name: str, *, help: str = "", **options: Any) -> Parser:
        """Adds a command. `help` is its line in the list of commands."""
        words = help or SUMMARIES.get(name, "")
        shown = {"help": words.replace("%", "%%")} if words else {}
        self.parsers[name] = self._added.add_parser(name, **shown, **options)
        self.summaries[name] = help
        return self.parsers[name]


def near(word: str, names: Iterable[str]) -> str:
    """Similar words, as the end of a sentence; empty when there are none."""
    similar = difflib.get_close_matches(word, names, 2)
    return f"; did you mean {' or '.join(similar)}?" if similar else ""
