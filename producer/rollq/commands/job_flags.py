"""What a command line asks to be played: its flags, and the jobs that follow from them, always the same ones."""

import argparse
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import entry_points
from typing import Any

from rollq.client.refill import replacement
from rollq.commands.flags import number, tasks, whole
from rollq.commands.progress import Progress
from rollq.errors import ContractError, JobFailure, SettingsError
from rollq.job import Budget, History, Job
from rollq.wire.codec import encode_job

BARE = ("scripted", "oracle")
"""Users that are told nothing more."""
USERS = (*BARE, "openai")
CHECKS = "rollq.job_checks"
"""Entry points of functions that look at a job before it is submitted."""
PLAN = (
    "env split tasks size epochs max_turns max_new_tokens max_tokens deadline temperature top_p calls single_tool"
    " history seed user purpose min_viable"
).split()
"""Flags that shape jobs, in the order of `line`."""


def add_tasks(parser: argparse.ArgumentParser, *, split: str, size: int) -> None:
    """The flags of what is played, with the command's own defaults."""
    parser.add_argument("--env", required=True, help="environment: shop, tau2:retail, tau2:airline, ...")
    parser.add_argument("--split", default=split, help="which of its task lists (%(default)s)")
    parser.add_argument("--tasks", type=tasks, required=True, metavar="A-B", help="indices into it, both included")
    parser.add_argument("--size", type=whole(1), default=size, metavar="N", help="samples of each task (%(default)s)")


def add_play(parser: argparse.ArgumentParser) -> None:
    """The flags of how it is played."""
    add_budget(parser)
    add_sampling(parser)
    add_strategy(parser)
    parser.add_argument("--seed", type=whole(0), default=0, metavar="S", help="for environment and user (%(default)s)")
    parser.add_argument(
        "--user",
        type=user,
        default={"kind": "scripted"},
        metavar="USER",
        help="scripted, oracle, openai:ENDPOINT:MODEL, or the specification as JSON (scripted)",
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    """The flags of an attempt's budget."""
    d = Budget()
    parser.add_argument(
        "--max-turns", type=whole(1), default=d.max_turns, metavar="N", help="turns of the policy (%(default)s)"
    )
    parser.add_argument(
        "--max-new-tokens",
        type=whole(1),
        default=d.max_new_tokens,
        metavar="N",
        help="tokens sampled in one turn (%(default)s)",
    )
    parser.add_argument(
        "--max-tokens",
        type=whole(1),
        default=d.max_tokens,
        metavar="N",
        help="tokens of a trajectory, of each of its traces with --history template (%(default)s)",
    )
    parser.add_argument(
        "--deadline",
        type=number(0, above=True),
        default=d.deadline_s,
        metavar="S",
        help="seconds of an attempt (%(default)s)",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The flags of the sampling parameters."""
    parser.add_argument(
        "--temperature", type=number(0), default=1.0, metavar="T", help="of the policy's sampling (%(default)s)"
    )
    parser.add_argument(
        "--top-p", type=number(0, 1, above=True), metavar="P", help="sample from the likeliest P (the engine's)"
    )


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """The flags of how turns are read and history is kept."""
    parser.add_argument(
        "--calls",
        choices=("first", "all", "refuse"),
        default="first",
        help="several tool calls in one turn: carry out the first, all of them, or none (%(default)s)",
    )
    parser.add_argument(
        "--single-tool", action="store_true", help="tell the policy to make one call a turn, as tau-bench does"
    )
    parser.add_argument(
        "--history",
        type=History,
        choices=list(History),
        default=History.KEEP,
        help="earlier turns stay as sampled, or as the template rewrites them, in a new trace (%(default)s)",
    )


def user(text: str) -> dict[str, Any]:
    """A user simulator's specification."""
    if text in BARE:
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
        f"expected {', '.join(BARE)}, openai:ENDPOINT:MODEL or a JSON object, not {text!r}"
    )


def line(args: argparse.Namespace) -> str:
    """What is going to be played, in one line, whether a flag said it, a run file or nobody."""
    user = [str(args.user[name]) for name in ("kind", "endpoint", "model") if name in args.user]
    tasks = "-".join(map(str, sorted({args.tasks[0], args.tasks[-1]})))
    shown = {**vars(args), "tasks": tasks, "user": ":".join(user)}
    said = {name: value for name in PLAN if (value := shown[name]) is not None and value is not False}
    return f"run {args.run_name}: " + ", ".join(
        f"{name} {f'{value:g}' if isinstance(value, float) else value}" for name, value in said.items()
    )


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Sample 0 of each group, epoch by epoch."""
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
        agent_args=_strategy(args),
        history=args.history,
        user=args.user,
        sampling=_sampling(args),
        budget=_budget(args),
        purpose=args.purpose,
        seed=args.seed + epoch,
        size=args.size,
        min_viable=args.min_viable or 0,
    )


def check(args: argparse.Namespace, refill: int = 0) -> None:
    """Raises SettingsError for a line with a job that cannot be, before anything is submitted."""
    for flag in ("env", "split"):
        if not getattr(args, flag):
            raise SettingsError(f"{_source(args, flag)} must be a name, not empty")
    try:
        encode_job(_job(args, args.tasks[0], 0))
        last = _job(args, args.tasks[-1], args.epochs - 1)
        encode_job(replacement(last, refill))  # the largest seed and the longest name
    except ContractError as e:
        raise SettingsError(str(e)) from e
    if warning := check_here(args):
        print(f"rollq: warning: {warning}", file=sys.stderr)


def _source(args: argparse.Namespace, flag: str) -> str:
    return f"--{flag} (or {flag} in {args.config})" if args.config else f"--{flag}"


def check_here(args: argparse.Namespace) -> str:
    """What the worker package, if it is installed here, has against the jobs of a line; a light client cannot tell.

    Returns a warning, empty if there is none. Raises SettingsError for a user simulator that no worker can play.
    """
    warnings = []
    for point in entry_points(group=CHECKS):
        try:
            warnings.append(point.load()(_job(args, args.tasks[-1], 0)))
        except ImportError:
            continue  # what it needs is not installed
        except JobFailure as e:
            raise SettingsError(f"{_source(args, 'user')}: {e}") from e
    return "; ".join(filter(None, warnings))


def source(args: argparse.Namespace) -> str:
    """A name for exactly these jobs: the same line goes on where it was, another one is another source."""
    jobs = [args.env, args.split, [args.tasks.start, args.tasks.stop], args.size, args.epochs, args.seed, args.user]
    shape = [asdict(_budget(args)), dict(_sampling(args)), _strategy(args), args.history, args.purpose, args.min_viable]
    return "line-" + hashlib.sha256(json.dumps([jobs, shape], sort_keys=True).encode()).hexdigest()[:20]


def group_name(env: str, split: str, task: int, epoch: int) -> str:
    """The same for the same task and epoch, so that a repeated submission finds its groups again."""
    base = re.sub(r"[^A-Za-z0-9._-]", "-", f"{env}.{split}.{task}")
    return base if epoch == 0 else f"{base}.e{epoch}"


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
    """agent_args, without what is the default."""
    chosen: dict[str, Any] = {} if args.calls == "first" else {"calls": args.calls}
    return chosen | ({"single_tool": True} if args.single_tool else {})


def watched(jobs: Iterable[Job], groups: int, progress: Progress) -> Iterator[Job]:
    """All samples of the same groups; a group counts on the display once the next one is asked for."""
    for i, job in enumerate(jobs):
        progress.show(i, groups, {"groups": f"submitted, next {job.group}"})
        # The whole group: after sample 0 alone its end would only be known by the next job.
        yield from (replace(job, sample=sample) for sample in range(job.size))
    progress.show(groups, groups, {"groups": "submitted"})


@contextlib.contextmanager
def restartable() -> Iterator[None]:
    """Ctrl-C is no loss, and says so."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing is lost, and the same line goes on where it was") from None
