"""The flags that say what is played, and the jobs that follow from them. The same flags always give the same jobs."""

import argparse
import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import entry_points
from typing import Any

from rollq.client.client import Client
from rollq.client.submission import group_name, replacement
from rollq.commands.flags.shared import (
    Merge,
    add_template_kwargs,
    agent,
    labels,
    name,
    number,
    one_of,
    tasks,
    whole,
    words,
)
from rollq.commands.progress import ProgressDisplay
from rollq.errors import ContractError, JobFailure, SettingsError
from rollq.extras import install_line
from rollq.job import QUEUE, Budget, History, Job
from rollq.wire.codec import encode_job

USERS_BY_NAME = ("scripted", "oracle")
"""User simulators that need no options."""
USERS = (*USERS_BY_NAME, "openai")
CHECKS = "rollq.job_checks"
"""Entry points of functions that check a job before it is submitted."""
TOKENIZERS = "rollq.tokenizers"
"""Entry points of functions that load a tokenizer and return its hash and that of its chat template."""
DESCRIBED = (
    "env split tasks size epochs max_turns max_new_tokens max_tokens deadline temperature top_p agent calls"
    " single_tool history template_kwargs routed_experts seed user purpose spare min_viable queue labels"
).split()
"""Flags that shape jobs, in the order of `describe`."""


def add_tasks(parser: argparse.ArgumentParser, *, split: str, size: int) -> None:
    """Adds the flags that name the tasks, with the command's own defaults."""
    parser.add_argument("--env", required=True, help="environment: shop, tau2:retail, tau2:airline, ...")
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


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say how turns are read and how earlier turns are kept."""
    parser.add_argument(
        "--agent",
        type=agent,
        default=("tool-calling", {}),
        metavar="NAME",
        help="agent strategy: tool-calling, act, react, or few-shot:FILE with one example a line, as JSON"
        " (tool-calling)",
    )
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


def describe(args: argparse.Namespace) -> str:
    """What is going to be played, in one line. It covers flags, run file and defaults."""
    user = [str(args.user[name]) for name in ("kind", "endpoint", "model") if name in args.user]
    tasks = "-".join(map(str, sorted({args.tasks[0], args.tasks[-1]})))
    labels = ",".join(f"{key}={value}" for key, value in args.labels.items()) or None
    queue = None if args.queue == QUEUE else args.queue
    shown = {**vars(args), "tasks": tasks, "user": ":".join(user), "queue": queue, "labels": labels}
    shown["spare"] = args.spare or None
    shown["template_kwargs"] = ",".join(f"{key}={json.dumps(to)}" for key, to in args.template_kwargs.items()) or None
    shown["routed_experts"] = "x".join(map(str, args.routed_experts.values())) or None
    shown["agent"] = args.agent[0]
    given = {name: value for name in DESCRIBED if (value := shown[name]) is not None and value is not False}
    return f"run {args.run_name}: " + ", ".join(
        f"{name} {f'{value:g}' if isinstance(value, float) else value}" for name, value in given.items()
    )


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """The jobs: sample 0 of each group, epoch by epoch."""
    for epoch in range(args.epochs):
        for task in args.tasks:
            yield _job(args, task, epoch)


def _job(args: argparse.Namespace, task: int, epoch: int) -> Job:
    return Job(
        run=args.run_name,
        group=group_name(args.env, args.split, task, epoch),
        env=args.env,
        split=args.split,
        task=task,
        agent=args.agent[0],
        agent_args=_strategy(args),
        history=args.history,
        template_kwargs=args.template_kwargs,
        user=args.user,
        sampling=_sampling(args),
        routed_experts=args.routed_experts,
        budget=_budget(args),
        purpose=args.purpose,
        seed=args.seed + epoch,
        size=args.size,
        spare=args.spare,
        min_viable=args.min_viable or 0,
        queue=args.queue,
        labels=args.labels,
    )


def check_jobs(args: argparse.Namespace, refill: int = 0) -> None:
    """Raises SettingsError when a job is invalid. Prints a warning when a task is not known on this machine."""
    for flag in ("env", "split"):
        if not getattr(args, flag):
            raise SettingsError(f"{_flag(args, flag)} must be a name, not empty")
    try:
        encode_job(_job(args, args.tasks[0], 0))
        last = _job(args, args.tasks[-1], args.epochs - 1)
        encode_job(replacement(last, refill))  # with the largest seed and the longest name
    except ContractError as e:
        raise SettingsError(str(e)) from e
    if warning := _installed_checks(args):
        print(f"rollq: warning: {warning}", file=sys.stderr)


def pin_tokenizer(args: argparse.Namespace, client: Client) -> None:
    """Fixes the tokenizer of --tokenizer, with the chat template of --template, for the run.

    Raises SettingsError when it cannot be loaded, when the run has another, and for --template-kwargs that the template
    does not read.
    """
    if args.tokenizer is None:
        if args.template is not None:
            raise SettingsError("--template needs --tokenizer, the tokenizer that it belongs to")
        return
    for point in entry_points(group=TOKENIZERS):
        try:
            hashes = point.load()(args.tokenizer, args.template, args.template_kwargs)
        except ImportError:
            continue  # a package that it needs is not installed
        except JobFailure as e:
            why = str(e).removeprefix("template_kwargs: ")
            raise SettingsError(f"{_flag(args, 'template_kwargs')}: {why}") from e
        client.pin_tokenizer(*hashes)
        return
    raise SettingsError(f"--tokenizer needs the worker's packages: {install_line('worker')}")


def _flag(args: argparse.Namespace, flag: str) -> str:
    line = f"--{flag.replace('_', '-')}"
    return f"{line} (or {flag} in {args.config})" if args.config else line


def _installed_checks(args: argparse.Namespace) -> str:
    """Runs the checks of the worker package, if it is installed; a light client leaves them to the workers.

    Returns a warning or "". Raises SettingsError for an agent strategy or a user simulator that no worker can play.
    """
    warnings = []
    for point in entry_points(group=CHECKS):
        try:
            warnings.append(point.load()(_job(args, args.tasks[-1], 0)))
        except ImportError:
            continue  # a package that it needs is not installed
        except JobFailure as e:
            flag = "agent" if str(e).startswith("agent") else "user"
            raise SettingsError(f"{_flag(args, flag)}: {e}") from e
    return "; ".join(filter(None, warnings))


def source_name(args: argparse.Namespace) -> str:
    """A name for exactly these jobs as a source. A repeated command line finds it and skips what it submitted
    before."""
    jobs = [args.env, args.split, [args.tasks.start, args.tasks.stop], args.size, args.epochs, args.seed, args.user]
    shape = [asdict(_budget(args)), dict(_sampling(args)), _strategy(args), args.history, args.purpose, args.min_viable]
    shape += [
        args.queue,
        args.labels,
        args.agent[0],
        *filter(None, (args.spare, args.template_kwargs, args.routed_experts)),
    ]
    return "line-" + hashlib.sha256(json.dumps([jobs, shape], sort_keys=True).encode()).hexdigest()[:20]


def _budget(args: argparse.Namespace) -> Budget:
    return Budget(
        max_turns=args.max_turns,
        max_new_tokens=args.max_new_tokens,
        max_tokens=args.max_tokens,
        deadline_s=args.deadline,
    )


def _sampling(args: argparse.Namespace) -> Mapping[str, Any]:
    found = {"temperature": args.temperature}
    return found if args.top_p is None else {**found, "top_p": args.top_p}


def _strategy(args: argparse.Namespace) -> dict[str, Any]:
    """The job's agent_args, without those that are defaults."""
    chosen: dict[str, Any] = {} if args.calls == "first" else {"calls": args.calls}
    chosen |= args.agent[1]
    return chosen | ({"single_tool": True} if args.single_tool else {})


class ShownJobs:
    """All samples of the line's groups, to be read as often as Redis loses some of them. Reading them shows progress: a
    group counts as submitted once the next one is asked for."""

    def __init__(self, args: argparse.Namespace, progress: ProgressDisplay) -> None:
        self.groups = len(args.tasks) * args.epochs
        self._args = args
        self._progress = progress

    def __iter__(self) -> Iterator[Job]:
        for i, job in enumerate(jobs(self._args)):
            self._progress.show(i, self.groups, {"groups": f"submitted, next {job.group}"})
            # All samples: sample 0 alone would be held back until the next job shows that its group ends.
            yield from (replace(job, sample=sample) for sample in range(job.members))
        self._progress.show(self.groups, self.groups, {"groups": "submitted"})


@contextlib.contextmanager
def explain_interrupt() -> Iterator[None]:
    """Says on Ctrl-C that nothing is lost, and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing is lost; to continue, repeat the same line") from None
