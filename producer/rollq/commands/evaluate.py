"""`rollq eval`: plays each task several times over the workers, and reports how often the policy succeeds.

Nothing is acknowledged before the whole result is printed, so the same line can be repeated after a crash and counts
each try once.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from rollq.batch import Batch
from rollq.client.client import Client
from rollq.client.consumer import Consumer
from rollq.client.waits import explain
from rollq.commands.connect import open_client
from rollq.commands.flags import jobs as job_flags
from rollq.commands.flags import run_file
from rollq.commands.flags.shared import Commands, add_broker, add_json, add_out, add_redis, add_run, add_timeout
from rollq.commands.progress import ProgressDisplay, open_progress
from rollq.commands.receive import batches, save, unfinished_and_dead
from rollq.errors import NotHeld, PullTimeout, RollqError, SettingsError
from rollq.export.formats import open_output
from rollq.export.summary import Summary
from rollq.export.trajectory_output import TrajectoryOutput
from rollq.job import Purpose


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "eval",
        help="measure a policy: mean reward and pass^k",
        description="Submits each task --size times to a new run, waits while the workers play, and reports the mean"
        " reward and pass^k: the chance that k tries at a task all succeed. If it is stopped, repeat the same line.",
    )
    run_file.add(parser)
    add_run(parser, help="name of a run that has no other jobs")
    job_flags.add_tasks(parser, split="test", size=4)
    job_flags.add_play(parser)
    add_timeout(parser)
    add_out(parser)
    add_redis(parser)
    add_broker(parser)
    add_json(parser, "end stdout with one JSON object (its fields: docs/commands.md)")
    parser.set_defaults(run=run, purpose=Purpose.EVAL, epochs=1, min_viable=None)


class Evaluation:
    """The tries graded so far. A task with a dead try is left out, because it has too few tries for pass^k."""

    def __init__(self, args: argparse.Namespace, out: TrajectoryOutput | None) -> None:
        self.args = args
        self.jobs: int = len(args.tasks) * args.size
        self.summary = Summary()
        self._out = out
        self._groups: dict[str, Callable[[], None]] = {}
        """How to acknowledge each group. The trajectories themselves are not kept: they would fill the memory."""

    @property
    def complete(self) -> bool:
        return self.summary.graded == self.jobs

    def receive(self, batch: Batch) -> None:
        """Counts the batch's tries, and does not acknowledge it yet. Raises NotHeld."""
        if not save(batch, self._out):
            return
        for group in batch.groups:
            if group.id not in self._groups:  # else the hold was lost and the group came again
                for trajectory in group.trajectories:
                    self.summary.add(trajectory)
            self._groups[group.id] = batch.ack

    def ack(self) -> None:
        for acknowledge in self._groups.values():
            with contextlib.suppress(NotHeld):  # the result is printed by now
                acknowledge()

    def result(self, dead: int, wall_s: float) -> dict[str, Any]:
        args, s = self.args, self.summary
        return {
            "run": args.run_name,
            "env": args.env,
            "split": args.split,
            "tasks": len(args.tasks),
            "size": args.size,
            "submitted": self.jobs,
            "done": s.trajectories,
            "dead": dead,
            **s.numbers(args.size),
            "reward_stderr": s.reward_stderr,
            "versions": sorted(s.versions),
            "wall_s": round(wall_s, 3),
        }


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    job_flags.check_jobs(args)
    with contextlib.ExitStack() as stack:
        stack.enter_context(job_flags.explain_interrupt())
        out = stack.enter_context(open_output(args.out, append=True)) if args.out else None
        client = stack.enter_context(open_client(args, args.run_name, warn=True))
        if out:
            out.run_began = client.reader.began
        progress = stack.enter_context(open_progress(sys.stderr))
        progress.say(job_flags.describe(args))
        _submit(args, client, progress)
        evaluation = Evaluation(args, out)
        with client.consumer(Purpose.EVAL) as consumer:
            _collect(evaluation, client, consumer, progress)
            progress.close()
            result = evaluation.result(client.stats()["dead"], time.monotonic() - began)
            _report(args, result)
            if evaluation.complete:
                evaluation.ack()
                return 0
    print(
        f"rollq: incomplete: {evaluation.jobs - result['done']} of {evaluation.jobs} tries are missing, and their tasks"
        f" are left out; the reasons: rollq dead --run {args.run_name}; to play them again: rollq requeue --run"
        f" {args.run_name}, then repeat this line",
        file=sys.stderr,
    )
    return 1


def _submit(args: argparse.Namespace, client: Client, progress: ProgressDisplay) -> None:
    """Submits all jobs and seals the run. Raises SettingsError when the run has other jobs, RollqError when it was
    evaluated before."""
    first = next(job_flags.jobs(args))
    if client.stats()["submitted"] and client.reader.job(first.id) is None:
        raise SettingsError(f"run {args.run_name} has other jobs: an evaluation needs a run of its own")
    groups = len(args.tasks)
    job_flags.pin_tokenizer(args, client)
    client.submit(job_flags.ShownJobs(args, progress), ahead=groups, source=job_flags.source_name(args))
    client.seal()
    if client.stats()["groups_acked"] == groups:
        raise RollqError(f"run {args.run_name} was evaluated before: evaluate again under another --run")


def _collect(evaluation: Evaluation, client: Client, consumer: Consumer, progress: ProgressDisplay) -> None:
    """Receives batches until every try is graded or dead. Raises PullTimeout."""
    args = evaluation.args

    def look() -> int:
        progress.show(evaluation.summary.trajectories, evaluation.jobs, _facts(evaluation, client, consumer))
        return 1

    def why(groups: int) -> str:
        return explain(client.reader, Purpose.EVAL, wanted=groups, own=consumer.held)

    try:
        for batch in batches(consumer, look, timeout=args.timeout, explain=why):
            with contextlib.suppress(NotHeld):  # it is handed out again
                evaluation.receive(batch)
    except PullTimeout as e:
        raise PullTimeout(
            f"run {args.run_name}: {evaluation.summary.trajectories} of {evaluation.jobs} tries were graded within"
            f" {args.timeout:g} s. {why(1) or f'See rollq stats --run {args.run_name}'}. To continue, repeat the same"
            " line"
        ) from e


def _facts(evaluation: Evaluation, client: Client, consumer: Consumer) -> dict[str, str]:
    mean = evaluation.summary.reward_mean
    facts = {
        "tries": f"graded in run {evaluation.args.run_name}",
        "reward": "-" if mean is None else f"{mean:.3f}",
        "jobs": unfinished_and_dead(client.stats()),
    }
    if (elsewhere := client.reader.standing(Purpose.EVAL).held - consumer.held) > 0:
        facts["waiting"] = f"for {elsewhere} groups of another consumer; if it died, they come within a minute"
    return facts


def _report(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(result), flush=True)
        return
    mean = "-" if result["reward_mean"] is None else f"{result['reward_mean']:.3f} mean"
    error = "" if result["reward_stderr"] is None else f", standard error {result['reward_stderr']:.3f} (over tasks)"
    turns = "-" if result["turns_mean"] is None else f"{result['turns_mean']:.1f}"
    rows = {
        "eval": f"{args.run_name}: {args.env}/{args.split}, {len(args.tasks)} tasks, {args.size} tries each",
        "reward": mean + error,
        "pass^k": "  ".join(f"pass^{k} {value:.3f}" for k, value in result["pass_hat_k"].items()) or "-",
        "jobs": f"{result['submitted']} submitted: {result['done']} graded here, {result['dead']} dead",
        "stops": ", ".join(f"{stop} {count}" for stop, count in sorted(result["stops"].items())) or "-",
        "tokens": f"{result['sampled_tokens']} sampled of {result['total_tokens']}, {turns} turns an episode",
        "weights": ", ".join(result["versions"]) or "-",
    }
    print("\n".join(f"{subject:<8} {text}" for subject, text in rows.items()))
    print(f"next: rollq show {args.out}:1" if args.out else f"next: rollq stats --run {args.run_name}")
    sys.stdout.flush()
