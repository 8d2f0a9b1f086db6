"""`rollq submit`: puts the jobs of a list of tasks on a run. Repeating it changes nothing."""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rollq.commands.addresses import client
from rollq.commands.arguments import (
    Commands,
    add_broker,
    add_json,
    add_redis,
    name,
    number,
    tasks,
    whole,
)
from rollq.errors import FailureClass, SettingsError
from rollq.job import Budget, History, Job, Purpose
from rollq.progress import Progress, open_progress
from rollq.replies import Submission


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "submit",
        help="put jobs on a run",
        description="Submits the samples of each task, a group a task. The same line again submits nothing twice.",
    )
    parser.add_argument("--run", dest="run_name", type=name, required=True, metavar="RUN")
    parser.add_argument("--env", required=True, help="environment: shop, tau2:retail, tau2:airline, ...")
    parser.add_argument("--split", default="train", help="which of its task lists (%(default)s)")
    parser.add_argument("--tasks", type=tasks, required=True, metavar="A-B", help="indices into it, both included")
    parser.add_argument("--size", type=whole(1), default=1, metavar="N", help="samples of each task (%(default)s)")
    parser.add_argument("--epochs", type=whole(1), default=1, metavar="K", help="times through the tasks (%(default)s)")
    add_budget(parser)
    add_sampling(parser)
    add_strategy(parser)
    parser.add_argument("--seed", type=whole(0), default=0, help="for environment and user (%(default)s)")
    parser.add_argument(
        "--user",
        type=user,
        default={"kind": "scripted"},
        metavar="USER",
        help="scripted, openai:ENDPOINT:MODEL, or the specification as JSON (scripted)",
    )
    parser.add_argument(
        "--purpose",
        type=Purpose,
        choices=list(Purpose),
        default=Purpose.TRAIN,
        help="train, or eval: never handed to a trainer (%(default)s)",
    )
    parser.add_argument(
        "--min-viable",
        type=whole(1),
        metavar="N",
        help="graded samples below which a group with dead members is dropped (--size)",
    )
    parser.add_argument(
        "--ahead",
        type=whole(1),
        default=256,
        metavar="GROUPS",
        help="wait while this many groups are not acknowledged (%(default)s)",
    )
    parser.add_argument(
        "--budget",
        type=budgets,
        default={},
        metavar="CLASS=N,...",
        help="failures of a class that make a job dead, for the whole run"
        " (engine=5,user=5,worker=5,env=2,job=2); fixed by its first submission",
    )
    parser.add_argument(
        "--refill",
        type=whole(0),
        default=0,
        metavar="N",
        help="wait until these groups are settled, and replace each dropped one, up to N times (%(default)s)",
    )
    parser.add_argument(
        "--seal",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="afterwards, say that nobody adds to the run any more: consumers then get its short last"
        " batch and come to an end",
    )
    add_redis(parser)
    add_broker(parser)
    add_json(parser, "end stdout with one JSON object: run, groups, size, new, known, sealed, with --refill: refilled")
    parser.set_defaults(run=run)


def add_budget(parser: argparse.ArgumentParser) -> None:
    """The flags of an attempt's budget."""
    d = Budget()
    parser.add_argument("--max-turns", type=whole(1), default=d.max_turns, metavar="N", help="(%(default)s)")
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
        help="tokens of the whole trajectory (%(default)s)",
    )
    parser.add_argument(
        "--deadline",
        type=number(0, above=True),
        default=d.deadline_s,
        metavar="S",
        help="seconds of an attempt (%(default)s)",
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


def strategy(args: argparse.Namespace) -> dict[str, Any]:
    """agent_args, without what is the default."""
    chosen: dict[str, Any] = {} if args.calls == "first" else {"calls": args.calls}
    return chosen | ({"single_tool": True} if args.single_tool else {})


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The flags of the sampling parameters."""
    parser.add_argument("--temperature", type=number(0), default=1.0, help="(%(default)s)")
    parser.add_argument("--top-p", type=number(0, 1, above=True), help="(the engine's)")


def user(text: str) -> dict[str, Any]:
    """A user simulator's specification."""
    if text == "scripted":
        return {"kind": "scripted"}
    if text.startswith("openai:"):
        _, endpoint, model = [*text.split(":", 2), "", ""][:3]
        if endpoint and model:
            return {"kind": "openai", "endpoint": endpoint, "model": model}
    elif text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(f"not JSON: {e}") from e
        if isinstance(found, dict) and isinstance(found.get("kind"), str):
            return found
        raise argparse.ArgumentTypeError('expected an object with a "kind"')
    raise argparse.ArgumentTypeError(f"expected scripted, openai:ENDPOINT:MODEL or a JSON object, not {text!r}")


def budgets(text: str) -> dict[FailureClass, int]:
    """`class=number,...`, as `Ledger.fix_budgets` takes them."""
    found: dict[FailureClass, int] = {}
    settable = [failure for failure in FailureClass if failure is not FailureClass.CANCELLED]
    for part in text.split(","):
        failure, _, count = (word.strip() for word in part.partition("="))
        if failure not in settable or failure in found or not re.fullmatch(r"[1-9][0-9]{0,8}", count):
            raise argparse.ArgumentTypeError(
                f"expected CLASS=N,... (each of {', '.join(settable)} at most once, N at least 1), not {part!r}"
            )
        found[FailureClass(failure)] = int(count)
    return found


def source(args: argparse.Namespace) -> str:
    """A name for exactly these jobs: the same line goes on where it was, another one is another source."""
    jobs = [args.env, args.split, [args.tasks.start, args.tasks.stop], args.size, args.epochs, args.seed, args.user]
    shape = [asdict(budget(args)), dict(sampling(args)), strategy(args), args.history, args.purpose, args.min_viable]
    return "line-" + hashlib.sha256(json.dumps([jobs, shape], sort_keys=True).encode()).hexdigest()[:20]


def budget(args: argparse.Namespace) -> Budget:
    return Budget(
        max_turns=args.max_turns,
        max_new_tokens=args.max_new_tokens,
        max_tokens=args.max_tokens,
        deadline_s=args.deadline,
    )


def sampling(args: argparse.Namespace) -> Mapping[str, Any]:
    found = {"temperature": args.temperature}
    return found if args.top_p is None else {**found, "top_p": args.top_p}


def group_name(env: str, split: str, task: int, epoch: int) -> str:
    """The same for the same task and epoch, so that a repeated submission finds its groups again."""
    base = re.sub(r"[^A-Za-z0-9._-]", "-", f"{env}.{split}.{task}")
    return base if epoch == 0 else f"{base}.e{epoch}"


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Sample 0 of each group, epoch by epoch."""
    for epoch in range(args.epochs):
        for task in args.tasks:
            yield Job(
                run=args.run_name,
                group=group_name(args.env, args.split, task, epoch),
                env=args.env,
                split=args.split,
                task=task,
                agent_args=strategy(args),
                history=args.history,
                user=args.user,
                sampling=sampling(args),
                budget=budget(args),
                purpose=args.purpose,
                seed=args.seed + epoch,
                size=args.size,
                min_viable=args.min_viable or 0,
            )


def run(args: argparse.Namespace) -> int:
    if (args.min_viable or 0) > args.size:
        raise SettingsError(f"--min-viable {args.min_viable} is more than --size {args.size}")
    next(jobs(args))  # a job that cannot be is refused before anything is submitted
    warn_of_a_strange_name(args.env)
    groups = len(args.tasks) * args.epochs
    refilled: Sequence[str] = ()
    with (
        client(args, args.run_name, budgets=args.budget, warn=True) as connected,
        open_progress(sys.stderr) as progress,
    ):
        if groups > args.ahead:
            progress.say(f"waits whenever {args.ahead} groups are not acknowledged: have `rollq pull` running")
        done = connected.submit(watched(jobs(args), groups, progress), ahead=args.ahead, source=source(args))
        if args.refill:
            progress.say("waits until its groups are settled, to replace dropped ones: have `rollq worker` running")
            refilled = connected.refill(jobs(args), times=args.refill, ahead=args.ahead).new
        if args.seal:
            connected.seal()
    report(args, groups, done, len(refilled))
    return 0


def warn_of_a_strange_name(env: str) -> None:
    """A word about an environment that is not known here; the workers decide, and may have more."""
    try:
        from rollq_worker.environments import names
    except ImportError:
        return  # a light client
    if not {env, env.partition(":")[0]} & set(names()):
        print(f"rollq: environment {env!r} is not known on this machine; do the workers have it?", file=sys.stderr)


def watched(jobs: Iterable[Job], groups: int, progress: Progress) -> Iterator[Job]:
    """The same jobs, counted on the display as they are asked for."""
    for i, job in enumerate(jobs):
        progress.show(i, groups, {"groups": job.group})
        yield job


def report(args: argparse.Namespace, groups: int, done: Submission, refilled: int) -> None:
    """What was done, and what to do next."""
    new, known = len(done.new), len(done.known)
    if args.json:
        said = {"run": args.run_name, "groups": groups, "size": args.size, "new": new, "known": known}
        print(json.dumps({**said, **({"refilled": refilled} if args.refill else {}), "sealed": args.seal}))
        return
    print(f"run {args.run_name}: {groups} groups of {args.size}: {new} jobs submitted, {known} known already")
    if refilled:
        print(f"      {refilled} jobs in place of dropped groups")
    print("next: rollq worker                       plays them; as many as you like, anywhere")
    print(f"      rollq stats --run {args.run_name}")
    print(f"      rollq pull --run {args.run_name} --groups {groups} --out {args.run_name}.jsonl")
    if not args.seal:
        print("      the same line with --seal, when nobody adds to the run any more: consumers then come to an end")
