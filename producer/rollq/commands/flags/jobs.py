"""The jobs that follow from the flags of `play`. The same flags always give the same jobs."""

import argparse
import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from rollq.client.client import Client
from rollq.commands.progress import ProgressDisplay
from rollq.errors import ContractError, JobFailure, SettingsError
from rollq.extras import install_line
from rollq.job import QUEUE, Budget, Job, group_name
from rollq.wire.codec import encode_job
from rollq.worker_package import for_clients

DESCRIBED = (
    "env split tasks size epochs max_turns max_new_tokens max_tokens deadline temperature top_p agent agent_args calls"
    " single_tool history template_kwargs routed_experts seed user reward reward_args purpose spare min_viable queue"
    " labels"
).split()
"""Flags that shape jobs, in the order of `describe`."""


def describe(args: argparse.Namespace) -> str:
    """What is going to be played, in one line. It covers flags, run file and defaults."""
    user = [str(args.user[name]) for name in ("kind", "endpoint", "model") if name in args.user]
    tasks = "-".join(map(str, sorted({args.tasks[0], args.tasks[-1]})))
    labels = ",".join(f"{key}={value}" for key, value in args.labels.items()) or None
    queue = None if args.queue == QUEUE else args.queue
    shown = {**vars(args), "tasks": tasks, "user": ":".join(user), "queue": queue, "labels": labels}
    shown["spare"], shown["reward"] = args.spare or None, args.reward or None
    shown["agent_args"] = _assignments(args.agent_args)
    shown["reward_args"] = _assignments(args.reward_args)
    shown["template_kwargs"] = _assignments(args.template_kwargs)
    shown["routed_experts"] = "x".join(map(str, args.routed_experts.values())) or None
    shown["agent"] = args.agent[0]
    given = {name: value for name in DESCRIBED if (value := shown[name]) is not None and value is not False}
    return f"run {args.run_name}: " + ", ".join(
        f"{name} {f'{value:g}' if isinstance(value, float) else value}" for name, value in given.items()
    )


def _assignments(values: Mapping[str, Any]) -> str | None:
    return ",".join(f"{key}={json.dumps(to)}" for key, to in values.items()) or None


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
        reward=args.reward,
        reward_args=args.reward_args,
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
    """Raises SettingsError when a job is invalid, and when this machine does not know its task. With --force that is a
    warning."""
    for flag in ("env", "split"):
        if not getattr(args, flag):
            raise SettingsError(f"{_flag(args, flag)} must be a name, not empty")
    try:
        encode_job(_job(args, args.tasks[0], 0))
        last = _job(args, args.tasks[-1], args.epochs - 1)
        encode_job(last.replacement(refill))  # with the largest seed and the longest name
    except ContractError as e:
        raise SettingsError(str(e)) from e
    if unknown := _installed_checks(args):
        if not args.force:
            raise SettingsError(f"{unknown} (if the workers know it: --force)")
        print(f"rollq: warning: {unknown}", file=sys.stderr)


def pin_tokenizer(args: argparse.Namespace, client: Client) -> None:
    """Fixes the tokenizer of --tokenizer, with the chat template of --template, for the run.

    Raises SettingsError when it cannot be loaded, when the run has another, and for --template-kwargs that the template
    does not read.
    """
    if args.tokenizer is None:
        if args.template is not None:
            raise SettingsError("--template needs --tokenizer, the tokenizer that it belongs to")
        return
    try:
        hashes = for_clients().tokenizer_hashes(args.tokenizer, args.template, args.template_kwargs)
    except ImportError as e:
        raise SettingsError(f"--tokenizer needs the worker's packages: {install_line('worker')}") from e
    except JobFailure as e:
        why = str(e).removeprefix("template_kwargs: ")
        raise SettingsError(f"{_flag(args, 'template_kwargs')}: {why}") from e
    client.pin_tokenizer(*hashes)


def _flag(args: argparse.Namespace, flag: str) -> str:
    line = f"--{flag.replace('_', '-')}"
    return f"{line} (or {flag} in {args.config})" if args.config else line


def _installed_checks(args: argparse.Namespace) -> str:
    """Runs the checks of the worker package, if it is installed; a light client leaves them to the workers.

    Returns what this machine does not know of the task, or "". Raises SettingsError for an agent strategy, a user
    simulator or a reward function that no worker can play.
    """
    try:
        return str(for_clients().check_job(_job(args, args.tasks[-1], 0), args.tasks))
    except ImportError:
        return ""
    except JobFailure as e:
        flag = next((flag for flag in ("agent", "reward", "judge") if str(e).startswith(flag)), "user")
        flag = "reward_args" if flag == "judge" else flag
        raise SettingsError(f"{_flag(args, flag)}: {e}") from e


def source_name(args: argparse.Namespace) -> str:
    """A name for exactly these jobs as a source. A repeated command line finds it and skips what it submitted
    before."""
    jobs = [args.env, args.split, [args.tasks.start, args.tasks.stop], args.size, args.epochs, args.seed, args.user]
    shape = [asdict(_budget(args)), dict(_sampling(args)), _strategy(args), args.history, args.purpose, args.min_viable]
    shape += [
        args.queue,
        args.labels,
        args.agent[0],
        *filter(None, (args.spare, args.template_kwargs, args.routed_experts, args.reward, args.reward_args)),
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
    chosen |= args.agent[1] | args.agent_args
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
