"""`rollq completion`: what completes commands and flags in a shell."""

import argparse

from rollq.commands.flags.shared import Commands
from rollq.commands.help import SUMMARIES
from rollq.extras import needs


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "completion",
        description='Prints a script for the shell: eval "$(rollq completion bash)" in ~/.bashrc completes commands and'
        " flags. For zsh, write it to a file _rollq in a folder of fpath.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with needs("completion"):
        import shtab
    top = args.all_commands()
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = "a command"  # shtab leaves out what has no help
            summaries = [action._ChoicesPseudoAction(name, (), SUMMARIES.get(name, "")) for name in action.choices]
            action._choices_actions = summaries
    print(shtab.complete(top, args.shell))
    return 0
