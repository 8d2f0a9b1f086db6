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
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from rollq.commands.connect import settings
from rollq.commands.flags.play import add_agent
from rollq.commands.flags.shared import (
    add_json,
    add_template,
    add_template_kwargs,
    add_tokenizer,
    environment,
    http_url,
    number,
    tasks,
    whole,
)
from rollq.commands.parser import Commands
from rollq.commands.progress import open_progress
from rollq.commands.tables import first_line
from rollq.errors import JobFailure, SettingsError
from rollq.export.formats import open_output
from rollq.export.transcript import clean
from rollq.extras import install_line, needs
from rollq.job import Budget, Job, group_name
from rollq.urls import mask_url
from rollq_worker.commands.demo.processes import DemoProcesses
from rollq_worker.commands.demo.run import DemoRun
from rollq_worker.commands.environment_names import task_count


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        description="Starts Redis, an engine that replays the tasks' ground truth, and a worker. Submits groups of"
        " jobs, takes them back as a trainer would, and counts every job. Exit code 0: none was lost or came twice.",
    )
    parser.add_argument(
        "--env",
        type=environment,
        default="shop",
        metavar="NAME",
        help="environment: shop, tau2:retail, tau2:airline, ..., or a file: game.py:load (%(default)s)",
    )
    parser.add_argument("--split", default="train", help="one of the environment's task lists (%(default)s)")
    parser.add_argument("--groups", type=whole(1), metavar="N", help="number of groups (8, or one for each of --tasks)")
    parser.add_argument("--size", type=whole(1), default=4, metavar="N", help="samples of each task (%(default)s)")
    parser.add_argument("--tasks", type=tasks, metavar="A-B", help="tasks A to B, or one (the first --groups tasks)")
    parser.add_argument("--concurrency", type=whole(1), metavar="N", help="episodes at a time (all, at most 64)")
    parser.add_argument("--seed", type=whole(0), default=0, help="seed of environment, user and mistakes (%(default)s)")
    parser.add_argument(
        "--mistakes",
        type=number(0, 1),
        default=0.3,
        metavar="P",
        help="probability that the replay engine gets an episode wrong (%(default)s)",
    )
    for flag, value, help in (
        ("--max-turns", Budget().max_turns, "turns of the policy"),
        ("--max-new-tokens", Budget().max_new_tokens, "tokens sampled in one turn"),
    ):
        parser.add_argument(flag, type=whole(1), default=value, metavar="N", help=f"at most N {help} (%(default)s)")
    parser.add_argument("--temperature", type=number(0), default=1.0, help="sampling temperature (%(default)s)")
    add_agent(parser)
    parser.add_argument("--engine", type=http_url, metavar="URL", help="SGLang server in place of the replay engine")
    add_tokenizer(parser)
    add_template(parser)
    add_template_kwargs(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the trajectories to this file, as pull does")
    add_json(parser, "end stdout with one JSON object (its fields: docs/commands.md); the rest goes to stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    _check_extra()
    found = settings(args)
    tokenizer, template = found.tokenizer, found.template
    jobs = demo_jobs(args, task_count(args.env, args.split))
    _check_agent(jobs[0])
    if tokenizer:
        from rollq_worker.tokens.tokenizer import find_tokenizer

        find_tokenizer(tokenizer)
    if template:
        from rollq_worker.tokens.training_templates import template_text

        template_text(template)
    if args.template_kwargs:
        from rollq_worker.tokens.tokenizer import load_tokenizer

        try:
            load_tokenizer(tokenizer, template).with_arguments(args.template_kwargs)
        except JobFailure as e:
            raise SettingsError(f"--template-kwargs: {str(e).removeprefix('template_kwargs: ')}") from e
    for signum in (signal.SIGTERM, signal.SIGHUP):  # they unwind the stack as Ctrl-C does, which stops the processes
        signal.signal(signum, lambda signum, frame: sys.exit(128 + signum))
    stream = sys.stderr if args.json else sys.stdout
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open_output(args.out, append=False)) if args.out else None
        progress = stack.enter_context(open_progress(stream))
        processes = stack.enter_context(DemoProcesses(progress.say))
        processes.start_redis()
        if args.engine:
            processes.use_engine(args.engine)
        else:
            flags = {"--env": args.env, "--mistakes": args.mistakes, "--seed": args.seed}
            flags |= {"--tokenizer": tokenizer, "--template": template}
            processes.start_engine([str(word) for flag in flags.items() if flag[1] is not None for word in flag])
        processes.await_engine()
        processes.start_worker(args.concurrency or min(64, len(jobs) * args.size), tokenizer, template)
        progress.say(f"run      {jobs[0].run}: {len(jobs)} groups of {args.size}, {args.env}/{args.split}")
        demo = DemoRun(jobs, processes, progress, out)
        demo.play()
        if out:
            out.begin()  # also when nothing was saved, so that no earlier demo's trajectories stay
        result = demo.result(time.monotonic() - began)
    tasks = range(jobs[0].task, jobs[0].task + min(8, len({job.task for job in jobs})))
    report(args, result, demo.deaths, tasks, stream)
    if demo.lost or result["duplicates"]:
        print(
            f"rollq: the counts disagree: {demo.lost} jobs are lost, {result['duplicates']} came twice", file=sys.stderr
        )
        return 1
    return 1 if demo.deaths else 0


def _check_extra() -> None:
    """Worker and engine run in processes of their own: what they import is looked for here, where it can be said."""
    with needs("demo"):
        for package in ("celery", "requests", "tokenizers", "aiohttp"):
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)


def _check_agent(job: Job) -> None:
    from rollq_worker.agents.known_agents import agent_starter, is_program

    if is_program(job.agent):
        try:
            agent_starter(job)
        except JobFailure as e:
            raise SettingsError(f"--agent: {e}") from e


def demo_jobs(args: argparse.Namespace, count: int) -> list[Job]:
    """The demo's jobs: sample 0 of each group. More groups than tasks repeat the tasks in another epoch."""
    chosen = args.tasks or range(min(args.groups or 8, count))
    if chosen[-1] >= count:
        raise SettingsError(f"{args.env}/{args.split} has tasks 0-{count - 1}; --tasks asks for {chosen[-1]}")
    groups = args.groups or (len(chosen) if args.tasks else 8)
    name = f"demo-{secrets.token_hex(4)}"
    return [
        Job(
            run=name,
            group=group_name(args.env, args.split, chosen[i % len(chosen)], i // len(chosen)),
            env=args.env,
            split=args.split,
            task=chosen[i % len(chosen)],
            agent=args.agent[0],
            agent_args=args.agent[1] | args.agent_args,
            template_kwargs=args.template_kwargs,
            sampling={"temperature": args.temperature},
            budget=Budget(max_turns=args.max_turns, max_new_tokens=args.max_new_tokens),
            seed=args.seed + i // len(chosen),
            size=args.size,
        )
        for i in range(groups)
    ]


def report(
    args: argparse.Namespace, result: Mapping[str, Any], deaths: Sequence[str], tasks: range, stream: TextIO
) -> None:
    mean = "-" if result["reward_mean"] is None else f"{result['reward_mean']:.3f}"
    hats = "  ".join(f"pass^{k} {value:.3f}" for k, value in result["pass_hat_k"].items())
    stops = ", ".join(f"{stop} {count}" for stop, count in sorted(result["stops"].items()))
    speed = result["sampled_tokens"] / max(result["wall_s"], 1e-3)
    turns = "-" if result["turns_mean"] is None else f"{result['turns_mean']:.1f}"
    lines = [
        "",
        f"jobs     {result['submitted']} submitted: {result['done']} done, {result['dead']} dead;"
        f" {result['delivered']} delivered, {result['duplicates']} of them twice",
        f"reward   {mean} mean   {hats}",
        f"stops    {stops}",
        f"tokens   {result['sampled_tokens']} sampled of {result['total_tokens']}, {turns} turns an episode",
        f"time     {result['wall_s']:.1f} s from start to end, {speed:.0f} sampled tokens a second",
        *(f"dead     {clean(death.strip())}" for death in deaths[:1]),  # in full: all of one cause look alike
        *(f"dead     {first_line(death)}" for death in deaths[1:5]),
        "",
        "next:",
        *next_steps(args, tasks),
    ]
    print("\n".join(lines), file=stream, flush=True)
    if args.json:
        print(json.dumps(result), flush=True)


def next_steps(args: argparse.Namespace, tasks: range) -> list[str]:
    """Commands to try after this demo. `tasks`: some tasks of its split."""
    steps = {}
    if args.out:
        parquet = args.out.suffix == ".parquet"
        line = f"rollq audit {args.out} --offline" if parquet else f"rollq show {args.out}:1"
        steps[line] = "check what was written" if parquet else "read one trajectory, turn by turn"
    else:
        steps["rollq demo --out demo.jsonl"] = "keep the trajectories, then read one: rollq show demo.jsonl:1"
    if args.env == "shop":
        steps["rollq demo --env tau2_2025:retail --split test"] = f"tasks of tau2-bench ({install_line('tau2-2025')})"
    if args.engine:
        parts = f"rollq redis; rollq worker --engine {mask_url(args.engine)}"
        parts += f" --tokenizer {args.tokenizer}" if args.tokenizer else ""
        parts += f" --template {args.template}" if args.template else ""
    else:
        steps["rollq demo --engine URL --tokenizer DIR"] = "the same on a real SGLang server"
        parts = (
            "rollq redis; rollq engine" + (f" --env {args.env.given}" if args.env != "shop" else "") + "; rollq worker"
        )
    parts += f" --env {args.env.given}" if args.env.given != args.env else ""
    parts += f" --agent {args.agent[0].given}" if args.agent[0].given != args.agent[0] else ""
    chosen = f"--env {args.env.given} --split {args.split} --tasks {tasks[0]}-{tasks[-1]}"
    if args.agent[0] != "tool-calling":
        chosen += f" --agent {args.agent[0].given}"
    if args.template_kwargs:
        chosen += f" --template-kwargs {shlex.quote(json.dumps(args.template_kwargs))}"
    steps |= {
        parts: "each in a terminal of its own, and then:",
        f"rollq submit --run first {chosen} --size 4 --seal": "",
        f"rollq pull --run first --groups {len(tasks)} --out first.jsonl": "",
    }
    width = max(len(line) for line, why in steps.items() if why and len(line) < 50)
    return [f"  {line:<{width}}   {why}".rstrip() for line, why in steps.items()]
