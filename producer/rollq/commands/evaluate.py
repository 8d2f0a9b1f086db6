"""`rollq eval`: plays each task several times over the workers, reports how often the policy
succeeds, and keeps the result with the run.

The result is stored before anything is acknowledged, so the same line can be repeated after a
crash, and prints the result again at any time.
"""

import argparse
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from rollq.client.client import Client
from rollq.client.evaluation import Collector
from rollq.client.waits import WaitLog, explain
from rollq.commands.connect import open_client, open_run
from rollq.commands.flags import keys
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.plan import Plan, ShownJobs, TaskKeys, explain_interrupt
from rollq.commands.flags.shared import add_json, add_out, add_redis, add_run, add_timeout
from rollq.commands.flags.types import name
from rollq.commands.progress import ProgressDisplay, open_progress
from rollq.commands.receive import LOOK_S, unfinished_and_dead
from rollq.commands.submit import add_tasks
from rollq.errors import ContractError, PullTimeout, SettingsError
from rollq.evaluation import report
from rollq.evaluation.comparison import Comparison, check_tasks, compare
from rollq.evaluation.result import Result
from rollq.evaluation.series import series, series_json, series_lines
from rollq.export import jsonl
from rollq.export.output import TrajectoryFile
from rollq.export.record import Unexportable
from rollq.job import Purpose, parse_id
from rollq.ledger.evaluations import EvaluationStore
from rollq.ledger.reader import LedgerReader
from rollq.ledger.versions import Versions
from rollq.servers.retry import retry
from rollq.trajectory import Trajectory

OF_TRAINING = ("purpose", "spare", "min_viable", "routed_experts")
"""Fields of a job that an evaluation does not have."""
PAUSE_S = 0.25
"""Seconds between two looks at the groups."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "eval",
        description="Submits each task --size times to a new run, waits while the workers play, "
        "and reports the mean reward and pass^k: the chance that k tries at a task all succeed. "
        "The result is kept with the run: the same line prints it again, and goes on after a "
        "crash.",
    )
    add_run(parser, required=False, help="name of a run that has no other jobs")
    add_tasks(parser, split="test", size=4)
    keys.add_set(parser, TaskKeys, OF_TRAINING)
    keys.add_config(parser)
    parser.add_argument(
        "--show",
        type=place,
        metavar="RUN[@NAME]",
        help="print the stored result of that run and play nothing; of a run with evaluations by a "
        "trainer, all of them by step; with a name, that one",
    )
    parser.add_argument(
        "--compare",
        type=place,
        metavar="RUN[@NAME]",
        help="compare with that evaluation, task by task",
    )
    add_timeout(parser)
    add_out(parser)
    add_redis(parser)
    add_json(parser, "end stdout with one JSON object (its fields: docs/evaluate.md)")
    parser.set_defaults(run=run)


def place(text: str) -> tuple[str, str]:
    """An argument type: a run, and the name of an evaluation in it, which is empty for a run of
    `rollq eval`.
    """
    run_name, _, evaluation = text.partition("@")
    return name(run_name), evaluation


def run(args: argparse.Namespace) -> int:
    return _show(args) if args.show else _evaluate(args)


def _show(args: argparse.Namespace) -> int:
    with open_run(args, args.show[0]) as reader:
        other = _other(args, reader)
        if not args.show[1]:
            names = [name for name in EvaluationStore(reader.scripts).names() if name]
            if names:
                return _show_series(args, reader, names, other)
        result = _load_result(reader, args.show)
        comparison = None
        if other:
            comparison = compare(result, other, report.title(other))
        _report(args, reader, result, comparison)
    return 0 if result.complete else 1


def _show_series(
    args: argparse.Namespace, reader: LedgerReader, names: Sequence[str], other: Result | None
) -> int:
    results = [_load_result(reader, (reader.run, name)) for name in names]
    versions = {result.version for result in results if result.version}
    steps = Versions(reader.redis, reader.run).steps(versions)
    points = series(results, steps, other)
    if args.json:
        print(json.dumps({"run": reader.run, "evaluations": series_json(points)}))
    else:
        print("\n".join(series_lines(points, other)))
    return 0 if all(result.complete for result in results) else 1


def _load_result(reader: LedgerReader, where: tuple[str, str]) -> Result:
    """The stored evaluation. Raises SettingsError, with those that are there, when it is not."""
    run_name, evaluation = where
    store = EvaluationStore(reader.scripts)
    result = store.load(evaluation)
    if result:
        return result
    names = [f"{run_name}@{other}" if other else run_name for other in store.names()]
    others = f"it has {', '.join(names)}" if names else "it has none that is finished"
    missing = f"evaluation {evaluation!r}" if evaluation else "evaluation"
    raise SettingsError(f"run {run_name} has no {missing}; {others}")


def _other(args: argparse.Namespace, reader: LedgerReader) -> Result | None:
    """The evaluation to compare with. Raises SettingsError when it is not there."""
    if not args.compare:
        return None
    return _load_result(LedgerReader(reader.redis, args.compare[0]), args.compare)


def _evaluate(args: argparse.Namespace) -> int:
    began = time.monotonic()
    values = keys.Values(TaskKeys, OF_TRAINING, split="test", size=4).read(args)
    values.need("run", "env", "tasks")
    task_keys = values.settings(TaskKeys)
    job = values.job(task=task_keys.tasks[0], purpose=Purpose.EVAL)
    plan = Plan(job=job, keys=task_keys)
    plan.check()
    args.run_name = plan.job.run
    with contextlib.ExitStack() as stack:
        stack.enter_context(explain_interrupt())
        out = stack.enter_context(TrajectoryFile(args.out, append=True)) if args.out else None
        client = stack.enter_context(open_client(args, args.run_name, warn=True))
        reader = stack.enter_context(open_run(args, args.run_name, must_exist=False))
        if out:
            out.run_began = reader.began
        tasks = list(plan.jobs())
        collector = Collector(
            reader, tasks, version=plan.job.weight_version or None, on_group=partial(_save, out)
        )
        retry(collector.check)
        other = _other(args, reader)
        if other:  # checked before anything is played
            played = [(job.env, job.split, job.task) for job in tasks]
            check_tasks(args.run_name, played, other, report.title(other))
        progress = stack.enter_context(open_progress(sys.stderr))
        progress.say(plan.describe())
        submit = partial(_submit, plan, client, reader, progress)
        submit()
        _collect(args, collector, submit, progress)
        progress.close()
        result = retry(collector.save)
        if out:
            retry(collector.ack)
        comparison = None
        if other and result.complete:
            comparison = compare(result, other, report.title(other))
        _report(args, reader, result, comparison, time.monotonic() - began)
        _say_what_stays(args, reader, result)
    return 0 if result.complete else 1


def _say_what_stays(args: argparse.Namespace, reader: LedgerReader, result: Result) -> None:
    """Prints on stderr how to play dead tries again, and how to free the trajectories in Redis."""
    name = args.run_name
    if not result.complete:
        missing = result.size * len(result.left_out)
        again = "their dead jobs were dropped: evaluate these tasks in another run"
        if result.dead:
            again = (
                f"rollq jobs list {name}; to play them again: rollq jobs requeue {name}, then "
                "repeat this line"
            )
        uncompared = ", so nothing is compared" if args.compare else ""
        print(
            f"rollq: incomplete: {missing} of {missing + len(result.tries)} tries are missing, and "
            f"their tasks are left out{uncompared}; the reasons: {again}",
            file=sys.stderr,
        )
    if args.out:
        return
    kept = reader.standing(Purpose.EVAL).unacknowledged
    if kept:
        print(
            f"rollq: {kept} groups stay in Redis, for rollq show. To free them and keep the "
            f"result, repeat this line with --out FILE; to delete both: rollq jobs drop {name} "
            "--whole-run --yes",
            file=sys.stderr,
        )


def _save(
    out: TrajectoryFile | None, trajectories: Sequence[Trajectory]
) -> tuple[str, ContractError] | None:
    """The job that cannot be written down, and why; None when all are."""
    try:
        if out:
            out.save(trajectories)
    except Unexportable as e:
        return e.job_id, e
    return None


def _submit(plan: Plan, client: Client, reader: LedgerReader, progress: ProgressDisplay) -> None:
    """Submits all jobs and seals the run. Raises SettingsError when the run has other jobs."""
    first = next(plan.jobs())
    if retry(reader.stats)["submitted"] and retry(lambda: reader.job(first.id)) is None:
        raise SettingsError(
            f"run {client.run} has other jobs: an evaluation needs a run of its own"
        )
    plan.pin_tokenizer(client)
    client.submit(ShownJobs(plan, progress), ahead=plan.groups, source=plan.source)
    client.seal()


def _collect(
    args: argparse.Namespace,
    collector: Collector,
    submit: Callable[[], None],
    progress: ProgressDisplay,
) -> None:
    """Reads groups until every try is graded or dead. Raises PullTimeout."""
    total = sum(job.size for job in collector.jobs)
    shown = float("-inf")
    deadline = float("inf")
    if args.timeout is not None:
        deadline = time.monotonic() + args.timeout
    why = partial(explain, collector.reader, Purpose.EVAL)
    wait = WaitLog(why)
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        if retry(collector.collect, left_s):  # Redis came back without its last writes
            submit()
        if collector.settled or time.monotonic() - shown >= LOOK_S:
            shown = time.monotonic()
            progress.show(collector.graded, total, _facts(args, collector, left_s))
        if collector.settled:
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise PullTimeout(
                f"run {args.run_name}: {collector.graded} of {total} tries were graded within "
                f"{args.timeout:g} s. {why() or f'See rollq stats --run {args.run_name}'}. To "
                "continue, repeat the same line"
            )
        wait.log_when_due()
        time.sleep(min(PAUSE_S, left_s))


def _facts(args: argparse.Namespace, collector: Collector, left_s: float) -> dict[str, str]:
    rewards = collector.rewards
    return {
        "tries": f"graded in run {args.run_name}",
        "reward": f"{fmean(rewards):.3f}" if rewards else "-",
        "jobs": unfinished_and_dead(retry(collector.reader.stats, left_s)),
    }


def _report(
    args: argparse.Namespace,
    reader: LedgerReader,
    result: Result,
    comparison: Comparison | None,
    wall_s: float | None = None,
) -> None:
    if args.json:
        fields = report.as_json(result)
        if comparison:
            fields["comparison"] = report.comparison_json(comparison)
        fields["wall_s"] = None if wall_s is None else round(wall_s, 3)
        print(json.dumps(fields), flush=True)
        return
    lines = report.summary_lines(result)
    if comparison:
        lines += report.comparison_lines(comparison)
    lines += ["", *report.task_table(result)]
    failures = report.failure_lines(result, _show_commands(args, reader, result))
    if failures:
        lines += ["", *failures]
    print("\n".join(lines), flush=True)


def _show_commands(
    args: argparse.Namespace, reader: LedgerReader, result: Result
) -> Callable[[str], str]:
    """Gives the command that shows a job: in the exported file, else in Redis while it is there."""
    failures = [failure.job for failure in result.failures[: report.SHOWN_ROWS]]
    lines = {}
    if args.out and args.out.is_file():
        lines = jsonl.line_numbers(args.out, failures)
    groups = [parse_id(job_id)[1] for job_id in failures]
    states = reader.group_states(groups)
    acked = {job for job, state in zip(failures, states, strict=True) if state == "acked"}

    def command(job_id: str) -> str:
        if job_id in lines:
            return f"rollq show {shlex.quote(f'{args.out}:{lines[job_id]}')}"
        if job_id in acked:
            return f"{job_id} (its trajectory has left Redis)"
        return f"rollq show {job_id}"

    return command
