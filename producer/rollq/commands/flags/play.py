"""The flags that say what is played: tasks, budget, sampling, strategy, user simulator, and who may play it."""

import argparse
import json
from typing import Any

from rollq.commands.flags.shared import (
    Merge,
    add_template_kwargs,
    agent,
    assignments,
    environment,
    labels,
    name,
    number,
    one_of,
    tasks,
    whole,
    words,
)
from rollq.job import QUEUE, Budget, History

USERS_BY_NAME = ("scripted", "oracle")
"""User simulators that need no options."""
USERS = (*USERS_BY_NAME, "openai")


def add_tasks(parser: argparse.ArgumentParser, *, split: str, size: int) -> None:
    """Adds the flags that name the tasks, with the command's own defaults."""
    parser.add_argument(
        "--env",
        type=environment,
        required=True,
        metavar="NAME",
        help="environment: shop, tau2:retail, tau2:airline, ..., or a file: game.py:load",
    )
    parser.add_argument("--split", default=split, help="one of the environment's task lists (%(default)s)")
    parser.add_argument("--tasks", type=tasks, required=True, metavar="A-B", help="tasks A to B of that list, or one")
    parser.add_argument("--size", type=whole(1), default=size, metavar="N", help="samples of each task (%(default)s)")


def add_play(parser: argparse.ArgumentParser) -> None:
    add_budget(parser)
    add_sampling(parser)
    add_strategy(parser)
    add_template_kwargs(parser)
    parser.add_argument(
        "--seed", type=whole(0), default=0, metavar="S", help="seed of environment and user (%(default)s)"
    )
    parser.add_argument(
        "--user",
        type=user,
        default={"kind": "scripted"},
        metavar="USER",
        help="user simulator: scripted, oracle, openai:ENDPOINT:MODEL, or its specification as JSON (scripted)",
    )
    parser.add_argument(
        "--reward",
        default="",
        metavar="NAME",
        help="reward function that grades in the worker: judge, or that of a package (the environment's grade)",
    )
    parser.add_argument(
        "--reward-args",
        action=Merge,
        type=assignments,
        default={},
        metavar="NAME=JSON",
        help="an argument of --reward, or a JSON object of them; may be repeated",
    )
    parser.add_argument(
        "--force", action="store_true", help="submit tasks that this machine does not know: the workers may know them"
    )
    add_routing(parser)


def add_routing(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say which workers may play the jobs, and what comes back with them."""
    parser.add_argument(
        "--queue",
        type=name,
        default=QUEUE,
        metavar="NAME",
        help="queue whose workers play the jobs: `rollq worker --queues NAME` (%(default)s)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="fix the run's tokenizer and chat template: a directory or a name on a hub, as for `rollq worker` (without"
        " it, the run's first worker does)",
    )
    parser.add_argument(
        "--template",
        metavar="NAME",
        help="with --tokenizer: a chat template in place of the tokenizer's own, as for `rollq worker`",
    )
    parser.add_argument(
        "--label",
        dest="labels",
        action=Merge,
        type=labels,
        default={},
        metavar="KEY=TEXT",
        help="a label of all these jobs, which comes back with their trajectories; may be repeated",
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    default = Budget()
    for flag, value, help in (
        ("--max-turns", default.max_turns, "turns of the policy"),
        ("--max-new-tokens", default.max_new_tokens, "tokens sampled in one turn"),
        ("--max-tokens", default.max_tokens, "tokens in a trajectory, or in each trace with --history template"),
    ):
        parser.add_argument(flag, type=whole(1), default=value, metavar="N", help=f"at most N {help} (%(default)s)")
    parser.add_argument(
        "--deadline",
        type=number(0, above=True),
        default=default.deadline_s,
        metavar="S",
        help="at most S seconds for an attempt (%(default)s)",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--temperature", type=number(0), default=1.0, metavar="T", help="sampling temperature (%(default)s)"
    )
    parser.add_argument(
        "--top-p",
        type=number(0, 1, above=True),
        metavar="P",
        help="sample only the likeliest tokens, with a total probability of P (the engine's default)",
    )


def add_agent(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the agent that plays."""
    parser.add_argument(
        "--agent",
        type=agent,
        default="tool-calling",
        metavar="NAME",
        help="agent strategy: tool-calling, act, react, or few-shot:FILE with one example a line, as JSON; or an agent"
        " program: an installed one, or a file, FILE.py:FUNCTION or FILE.sh (tool-calling; docs/agents.md)",
    )
    parser.add_argument(
        "--agent-args",
        action=Merge,
        type=assignments,
        default={},
        metavar="NAME=JSON",
        help="an argument of the agent program; may be repeated",
    )


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say who plays, how turns are read and how earlier turns are kept."""
    add_agent(parser)
    parser.add_argument(
        "--calls",
        choices=("first", "all", "refuse"),
        default="first",
        help="of several tool calls in one turn, carry out the first, all, or none (%(default)s)",
    )
    parser.add_argument(
        "--single-tool", action="store_true", help="tell the policy to make one call in each turn, as tau-bench does"
    )
    parser.add_argument(
        "--history",
        type=one_of(History),
        metavar=words(History),
        default=History.KEEP,
        help="keep earlier turns as sampled, or as the chat template rewrites them, in a new trace (%(default)s)",
    )


def user(text: str) -> dict[str, Any]:
    """An argument type: the specification of a user simulator."""
    if text in USERS_BY_NAME:
        return {"kind": text}
    if text.startswith("openai:"):
        _, endpoint, model = [*text.split(":", 2), "", ""][:3]
        if endpoint and model:
            return {"kind": "openai", "endpoint": endpoint, "model": model}
    elif text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(f"not JSON: {e}") from e
        if isinstance(found, dict) and found.get("kind") in USERS:
            return found
        raise argparse.ArgumentTypeError(f'expected an object with a "kind", which is {", ".join(USERS)}')
    raise argparse.ArgumentTypeError(
        f"expected {', '.join(USERS_BY_NAME)}, openai:ENDPOINT:MODEL or a JSON object, not {text!r}"
    )
