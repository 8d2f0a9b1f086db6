"""The limit of a command's arguments in every sandbox."""

from collections.abc import Sequence

from rollq.env import CommandResult

LONGEST_ARGUMENT = 100_000
"""Number of bytes of one argument; Linux takes 131,072."""


def refuse_arguments(command: Sequence[str]) -> CommandResult | None:
    """The result of a command with an argument that no process can have, else None."""
    for part in command:
        if "\0" in part or len(part.encode(errors="replace")) > LONGEST_ARGUMENT:
            return CommandResult(
                f"an argument has a null character or more than {LONGEST_ARGUMENT} bytes", 126
            )
    return None
