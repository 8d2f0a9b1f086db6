"""`rollq demo`: the whole pipeline on this machine, with a count of every job at the end.

Redis, engine and worker are real processes; producer and trainer loop are threads of this one.
"""

import argparse
import contextlib
import json
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from rollq.commands.connect import settings
from rollq.commands.flags import keys
from rollq.commands.flags.files import environment, typed
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.plan import unknown_part
from rollq.commands.flags.shared import add_json, add_tokenizer
from rollq.commands.flags.types import http_url, integer
from rollq.commands.progress import open_progress
from rollq.commands.tables import first_line
from rollq.errors import JobFailure, SettingsError
from rollq.export.output import TrajectoryFile
from rollq.export.transcript import clean
from rollq.job import Job, group_name
from rollq.numbers import is_number
from rollq.pip_extras import install_line, needs
from rollq.urls import mask_url
from rollq_worker.commands.demo.processes import DemoProcesses
from rollq_worker.commands.demo.run import DemoRun
from rollq_worker.commands.environment_names import task_count

OWN_FORM = ("tasks", "split", "agent", "mistakes")
"""Keys that a proposed line has in another form, or not at all."""
NOT_SET = ("run", "queue", "purpose", "spare", "min_viable", "labels")
"""Fields of a job that a demo fills in or has no use for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoKeys:
    """The keys of `demo` that are not fields of a job."""

    tasks: range | None = None
    """Tasks A-B of the split, both included, or one (the first ones)."""
    mistakes: float = 0.3
    """Probability that the replay engine gets an episode wrong."""

    def __post_init__(self) -> None:
        if not is_number(self.mistakes) or not 0 <= self.mistakes <= 1:
            raise SettingsError(f"mistakes must be a probability, not {self.mistakes!r}")


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        description="Starts Redis, an engine that replays the tasks' ground truth, and a worker. "
        "Submits groups of jobs, takes them back as a trainer would, and counts every job. Exit "
        "code 0: none was lost, came twice or died.",
    )
    parser.add_argument(
        "--env",
        type=environment,
        metavar="NAME",
        help="environment: shop, tau2:retail, tau2:airline, ..., or a file: game.py:load (shop)",
    )
    parser.add_argument(
        "--groups",
        type=integer(1),
        metavar="N",
        help="number of groups (8, or one for each of tasks)",
    )
    parser.add_argument("--size", type=integer(1), metavar="N", help="samples of each task (4)")
    keys.add_set(parser, DemoKeys, NOT_SET)
    parser.add_argument(
        "--engine",
        type=http_url,
        metavar="URL",
        help="SGLang or vLLM server in place of the replay engine",
    )
    add_tokenizer(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the trajectories to this file, as pull does"
    )
    add_json(
        parser,
        "end stdout with one JSON object (its fields: docs/commands.md); the rest goes to stderr",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    _check_extra()
    own, jobs = demo_jobs(args)
    unknown = unknown_part(jobs[0], [job.task for job in jobs])
    if unknown:
        raise SettingsError(unknown)
    defaults = settings(args)
    _check_tokenizer(defaults.tokenizer, defaults.template, jobs[0])
    stream = sys.stderr if args.json else sys.stdout
    with contextlib.ExitStack() as stack:
        out = None
        if args.out:
            out = stack.enter_context(TrajectoryFile(args.out, append=False))
        progress = stack.enter_context(open_progress(stream))
        received = _exit_on_signals()
        processes = stack.enter_context(DemoProcesses(progress.say))
        _start(args, own, jobs, processes, defaults.tokenizer)
        progress.say(
            f"run      {jobs[0].run}: {len(jobs)} groups of {jobs[0].size}, "
            f"{jobs[0].env}/{jobs[0].split}"
        )
        demo = DemoRun(jobs, processes, progress, out, received)
        demo.play()
        if out:
            out.begin()  # also when nothing was saved, so that no earlier demo's trajectories stay
        result = demo.result(time.monotonic() - began)
    report(args, jobs, result, demo.deaths, stream)
    if demo.lost or result["duplicates"]:
        print(
            f"rollq: the counts disagree: {demo.lost} jobs are lost, {result['duplicates']} came "
            "twice",
            file=sys.stderr,
        )
        return 1
    return 1 if demo.deaths else 0


def _exit_on_signals() -> Sequence[int]:
    """Unwinds the stack on a signal, which stops the processes. Returns the signals received, which
    grows: an exit that is raised inside a `__del__` of a library is lost.
    """
    received: list[int] = []

    def leave(signum: int, frame: object) -> None:
        received.append(signum)
        sys.exit(128 + signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, leave)
    return received


def _start(
    args: argparse.Namespace,
    own: DemoKeys,
    jobs: Sequence[Job],
    processes: DemoProcesses,
    tokenizer: str | None,
) -> None:
    job = jobs[0]
    processes.start_redis()
    if args.engine:
        processes.use_engine(args.engine)
    else:
        flags = ["--env", job.env, "--mistakes", str(own.mistakes), "--seed", str(job.seed)]
        if tokenizer:
            flags += ["--tokenizer", tokenizer]
        processes.start_engine(flags)
    processes.await_engine()
    processes.start_worker(min(64, len(jobs) * job.size), tokenizer)


def _check_extra() -> None:
    """Worker and engine run in processes of their own: what they import is looked for here, where
    it can be said.
    """
    with needs("demo"):
        for package in ("celery", "requests", "tokenizers", "aiohttp"):
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)


def _check_tokenizer(tokenizer: str | None, template: str | None, job: Job) -> None:
    from rollq_worker.tokens.tokenizer import load_tokenizer

    try:
        load_tokenizer(tokenizer, template).with_arguments(job.template_kwargs)
    except JobFailure as e:
        raise SettingsError(str(e)) from e


def demo_jobs(args: argparse.Namespace) -> tuple[DemoKeys, list[Job]]:
    """The demo's own keys, and its jobs: sample 0 of each group. More groups than tasks repeat the
    tasks in another epoch.
    """
    values = keys.Values(DemoKeys, NOT_SET, env=environment("shop"), size=4).read(args)
    own = values.settings(DemoKeys)
    task = own.tasks[0] if own.tasks else 0
    first = values.job(task=task, run=f"demo-{secrets.token_hex(4)}")
    count = task_count(first.env, first.split)
    tasks = own.tasks or range(min(args.groups or 8, count))
    if tasks[-1] >= count:
        raise SettingsError(f"{first.env}/{first.split} has tasks 0-{count - 1}, not {tasks[-1]}")
    groups = args.groups or (len(own.tasks) if own.tasks else 8)
    jobs = []
    for number in range(groups):
        epoch = number // len(tasks)
        task = tasks[number % len(tasks)]
        group = group_name(first.env, first.split, task, epoch)
        jobs.append(replace(first, task=task, group=group, seed=first.seed + epoch))
    return own, jobs


def report(
    args: argparse.Namespace,
    jobs: Sequence[Job],
    result: Mapping[str, Any],
    deaths: Sequence[str],
    stream: TextIO,
) -> None:
    mean = "-" if result["reward_mean"] is None else f"{result['reward_mean']:.3f}"
    hats = "  ".join(f"pass^{k} {value:.3f}" for k, value in result["pass_hat_k"].items())
    stops = ", ".join(f"{stop} {count}" for stop, count in sorted(result["stops"].items()))
    speed = result["sampled_tokens"] / max(result["wall_s"], 1e-3)
    turns = "-" if result["turns_mean"] is None else f"{result['turns_mean']:.1f}"
    lines = [
        "",
        f"jobs     {result['submitted']} submitted: {result['done']} done, {result['dead']} dead; "
        f"{result['delivered']} delivered, {result['duplicates']} of them twice",
        f"reward   {mean} mean   {hats}",
        f"stops    {stops}",
        f"tokens   {result['sampled_tokens']} sampled of {result['total_tokens']}, {turns} turns "
        "an episode",
        f"time     {result['wall_s']:.1f} s from start to end, {speed:.0f} sampled tokens a second",
        # The first in full: all of one cause look alike.
        *(f"dead     {clean(death.strip())}" for death in deaths[:1]),
        *(f"dead     {first_line(death)}" for death in deaths[1:5]),
        "",
        "next:",
        *next_steps(args, jobs),
    ]
    print("\n".join(lines), file=stream, flush=True)
    if args.json:
        print(json.dumps(result), flush=True)


def next_steps(args: argparse.Namespace, jobs: Sequence[Job]) -> list[str]:
    """Commands to try after this demo."""
    job = jobs[0]
    steps = {}
    if args.out:
        steps[f"rollq show {shlex.quote(f'{args.out}:1')}"] = "read one trajectory, turn by turn"
    else:
        steps["rollq demo --out demo.jsonl"] = (
            "keep the trajectories, then read one: rollq show demo.jsonl:1"
        )
    if job.env == "shop":
        tau = f"tasks of tau2-bench ({install_line('tau2-2025')})"
        steps["rollq demo --env tau2_2025:retail --set split=test"] = tau
    if not args.engine:
        steps["rollq demo --engine URL --tokenizer DIR"] = "the same on a real server"
    steps[_parts_line(args, job)] = "each in a terminal of its own, and then:"
    tasks = min(8, len({job.task for job in jobs}))
    steps[_submit_line(args, job, tasks)] = ""
    steps[f"rollq pull --run first --groups {tasks} --out first.jsonl"] = ""
    width = max(len(line) for line, words in steps.items() if words and len(line) < 60)
    return [f"  {line:<{width}}   {words}".rstrip() for line, words in steps.items()]


def _parts_line(args: argparse.Namespace, job: Job) -> str:
    """Commands that start the parts of this demo one by one."""
    env, agent = shlex.quote(typed(job.env)), shlex.quote(typed(job.agent))
    line = "rollq redis; rollq engine"
    if args.engine:
        line = f"rollq redis; rollq worker --engine {mask_url(args.engine)}"
        if args.tokenizer:
            line += f" --tokenizer {shlex.quote(args.tokenizer)}"
    else:
        if env != "shop":
            line += f" --env {env}"
        line += "; rollq worker"
    if env != job.env:
        line += f" --env {env}"
    if agent != job.agent:
        line += f" --agent {agent}"
    return line


def _submit_line(args: argparse.Namespace, job: Job, tasks: int) -> str:
    """A command that submits so many tasks of this demo to a run."""
    last = job.task + tasks - 1
    line = f"rollq submit --run first --env {shlex.quote(typed(job.env))} --split {job.split}"
    line += f" --tasks {job.task}-{last}"
    if job.agent != "tool-calling":
        line += f" --set {shlex.quote(f'agent={typed(job.agent)}')}"
    for key, value in args.set:
        if key not in OWN_FORM:
            line += f" --set {shlex.quote(f'{key}={value}')}"
    return f"{line} --size 4 --seal"
