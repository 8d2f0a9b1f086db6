"""`rollq env`: the environments of this machine, a check of one, and a new one to begin with."""

import argparse
import json
import sys
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING

from rollq.commands.flags.files import environment, typed
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import add_json
from rollq.commands.flags.types import tasks
from rollq.commands.progress import open_progress
from rollq.errors import SettingsError
from rollq.job import NAME
from rollq.pip_extras import needs

if TYPE_CHECKING:
    from rollq_worker.commands.env.check import Report
    from rollq_worker.commands.env.own_process import Checked

TEMPLATE = Path(__file__).with_name("new")
"""The files of a new environment. NAME in their names and texts becomes its name."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "env",
        description="Lists the environments of this machine, checks one by playing its tasks "
        "without a model, or writes a new one to begin with.",
    )
    kinds = parser.add_commands(title="commands")
    listed = kinds.add_parser(
        "list",
        help="print their names, and what brings each",
        description="Prints the names of all environments, and what brings each.",
    )
    add_json(listed, "print one JSON object: what brings each environment, by name")
    listed.set_defaults(run=_list)
    checked = kinds.add_parser(
        "check",
        help="play some tasks of one without a model, and say what is wrong with it",
        description="Plays some tasks by ground truth, by wrong calls and by small talk, and each "
        "ground truth a second time from its journal. Exit code 1: something is wrong.",
    )
    checked.add_argument(
        "env",
        type=environment,
        metavar="NAME|FILE",
        help="environment to check: a name, FILE.py:FUNCTION, or a dataset, FILE.jsonl:GRADER",
    )
    checked.add_argument("--split", help="one of the environment's task lists (the first)")
    checked.add_argument(
        "--tasks",
        type=tasks,
        metavar="A-B",
        help="tasks A to B, or one (20 from all over the split)",
    )
    add_json(checked, "print one JSON object: env, version, split, tasks, problems, notes, costs")
    checked.set_defaults(run=_check)
    new = kinds.add_parser(
        "new",
        help="write a small one to begin with",
        description="Writes a package with a small environment that passes its own tests.",
    )
    new.add_argument(
        "name", type=_new_name, metavar="NAME", help="name of the environment and of its folder"
    )
    new.set_defaults(run=_new)


def _list(args: argparse.Namespace) -> int:
    with needs("worker"):
        from rollq_worker.environments import origins
        from rollq_worker.environments.files import FILES
    sources = origins() | {file.name: file.written for file in FILES.readable()}
    if args.json:
        print(json.dumps(sources))
        return 0
    width = max(map(len, sources))
    for name in sorted(sources):
        print(f"{name:<{width}}  {sources[name]}")
    print("next: rollq env check NAME")
    return 0


def _check(args: argparse.Namespace) -> int:
    with needs("worker"):
        from rollq_worker.commands.env import own_process
    output = 2 if args.json else 1  # what it prints is not JSON
    with open_progress(sys.stderr) as progress:
        checked = own_process.check(
            args.env,
            args.split,
            args.tasks,
            output,
            lambda now: progress.show(
                now.report.played, len(now.tasks), {"tasks": f"of {now.split}"}
            ),
        )
    report = checked.report
    if args.json:
        print(
            json.dumps(
                {
                    "env": args.env,
                    "version": checked.version,
                    "split": checked.split,
                    "tasks": report.played,
                    "problems": [str(problem) for problem in report.problems],
                    "notes": report.notes,
                    "step_ms": _step_ms(report),
                    "programs_s": _programs_s(report),
                }
            )
        )
    else:
        print("\n".join(_as_text(typed(args.env), checked)))
    return 1 if report.problems else 0


def _as_text(env: str, checked: "Checked") -> list[str]:
    report = checked.report
    splits = [f"{name} ({tasks} tasks)" for name, tasks in checked.splits.items()]
    problems = report.lines
    lines = [f"{env}: {', '.join(splits)}"]
    lines += [f"BAD   {problem}" for problem in problems]
    lines += [f"note  {note}" for note in report.notes]
    lines.append(f"played {report.played} tasks of {checked.split}: {len(problems)} problems")
    if report.steps:
        lines.append(f"a turn costs {_step_ms(report):.2f} ms of CPU, opening and grade included")
    if report.programs_s:
        lines.append(
            f"an episode costs {_programs_s(report):.2f} s of CPU in the programs that it starts"
        )
    if not problems:
        lines.append(f"next: rollq demo --env {env} --set split={checked.split}")
    return lines


def _step_ms(report: "Report") -> float:
    return 1e3 * report.step_s / report.steps if report.steps else 0.0


def _programs_s(report: "Report") -> float:
    return report.programs_s / max(1, report.episodes)


def _new_name(text: str) -> str:
    """An argument type: a name that Python can import."""
    if not (NAME.fullmatch(text) and text.isidentifier() and text.islower()) or iskeyword(text):
        raise argparse.ArgumentTypeError(
            "expected a name of small letters, digits and _ that begins with a letter, and no word "
            f"of Python's, not {text!r}"
        )
    return text


def _new(args: argparse.Namespace) -> int:
    folder = Path(args.name)
    if folder.exists():
        raise SettingsError(f"{folder} exists already; choose another name, or remove it")
    if find_spec(args.name):
        raise SettingsError(
            f"Python has a module {args.name!r} already, which {args.name}.py would hide; choose "
            "another"
        )
    with needs("worker"):
        from rollq_worker.environments import names
    if args.name in names():
        raise SettingsError(
            f"there is an environment {args.name!r} already (rollq env list); choose another name"
        )
    folder.mkdir()
    for source in sorted(TEMPLATE.iterdir()):
        written = folder / source.name.replace("NAME", args.name).removesuffix(".txt")
        written.write_text(source.read_text().replace("NAME", args.name))
        print(f"wrote {written}")
    file = folder / f"{args.name}.py"
    print(f"next: rollq env check {file}")
    print(f"      rollq demo --env {file}")
    print(f"      pytest {folder}                    (pip install pytest)")
    print(f"      pip install ./{folder}, on every worker: it is then called {args.name}")
    return 0
