"""What does a turn cost rollq, and what other libraries for rollouts, on one task?

Each side plays the task of peers/task.py (7 tool calls and a message, an environment that costs
nothing) at engine latency 0, in turns: the bare loop, a `rollq worker` with Redis, and each peer that
is named with a Python in which it is installed. CPU is user and system time of a side's processes;
the servers that answer, Redis and the producer are not counted. All rewards must be 1.0.

    python benchmarks/bench_peers.py --tokenizer DIR --peer openai=.venv/peers/bin/python

    openai      asyncio and the openai client           pip install openai
    lightning   the same behind Agent Lightning 1.0     pip install agentlightning openai
    slime       its rollout code                        its checkout in PYTHONPATH, and what it imports
    verifiers   its null harness                        pip install 'verifiers>=0.4' uv
"""  # noqa: E501

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks import Check, add_tokenizer, conclude, parser_for
from cpu import cpu_seconds, family, require_linux, resident_mb
from peers.task import TASKS, TURNS
from processes import Processes
from runs import require_perfect, rollouts, wait_until_done
from tables import ms, table

from rollq.client.client import Client
from rollq.job import Job
from rollq_worker.environments.files import add_file
from rollq_worker.tokens.tokenizer import BUNDLED

TASK = f"{Path(__file__).with_name('peers') / 'task.py'}:load"
KEEPS = {
    "bare": "ids and logprobs, in memory",
    "rollq": "ids, logprobs and versions of each turn, in Redis",
    "openai": "messages, in memory",
    "lightning": "messages, and what ids the engine gives, in memory",
    "slime": "ids and logprobs, in memory",
    "verifiers": "messages of finished episodes",
}
"""The sides, and what each has after a turn."""
SCRIPTS = {
    "bare": "bare",
    "openai": "openai_client",
    "lightning": "agent_lightning",
    "slime": "slime_rollout",
    "verifiers": "verifiers_rollout",
}
HERE = Path(__file__).parent
PATHS = (HERE, HERE / "peers", HERE.parent / "producer", os.environ.get("PYTHONPATH", ""))
"""What a peer's Python imports besides its own packages. Of rollq that is `rollq.env` alone."""
OF_BARE = 2.3
"""Target: CPU of a turn of rollq, over the bare loop's."""


@dataclass
class Side:
    """One of those that are compared."""

    pid: int
    play: Callable[[int], None]
    """Plays that many rollouts. Exits when a reward is not 1.0."""
    rollouts: int
    ms_a_turn: list[float] = field(default_factory=list)
    rest_mb: float = 0.0
    peak_mb: float = 0.0

    def round(self) -> None:
        before = cpu_seconds(self.pid)
        self.play(self.rollouts)
        spent = cpu_seconds(self.pid) - before
        self.ms_a_turn.append(spent / self.rollouts / TURNS * 1000)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    require_linux()
    with Processes() as processes, ExitStack() as ends:
        setting = {
            "env": TASK,
            "split": "train",
            "engine_url": processes.engine(TASK, args.tokenizer),
            "chat_url": chat_url(processes),
            "tokenizer": args.tokenizer or str(BUNDLED),
            "concurrency": args.concurrency,
        }
        sides = {"rollq": worker(processes, setting, args)}
        for name, python in {"bare": sys.executable, **dict(args.peer)}.items():
            peer = Peer(processes.folder, setting, name, python)
            ends.enter_context(peer.process)
            sides[name] = Side(peer.process.pid, peer.play, args.rollouts)
        for side in sides.values():
            side.rest_mb = memory(side.pid, "VmRSS")
            side.play(args.rollouts)
        for _ in range(args.repeats):
            for side in sides.values():
                side.round()
        for side in sides.values():
            side.peak_mb = memory(side.pid, "VmHWM")
        result = {name: figures(side, sides["bare"]) for name, side in sides.items()}
    report(result, args)
    target = Check(
        "free environment: CPU a turn, over the bare loop's", result["rollq"]["of_bare"], OF_BARE
    )
    return conclude(result, [target], args.json)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_for(__doc__)
    add_tokenizer(parser)
    parser.add_argument(
        "--peer",
        type=named,
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="one more side, and its Python (none)",
    )
    parser.add_argument(
        "-c", "--concurrency", type=int, default=64, help="rollouts at once (%(default)s)"
    )
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts a round (%(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=5, help="rounds, after one to warm up (%(default)s)"
    )
    return parser.parse_args(argv)


def named(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    found = shutil.which(python)
    if name not in SCRIPTS or not found:
        raise argparse.ArgumentTypeError(f"expected NAME=PYTHON, with one of {', '.join(SCRIPTS)}")
    return name, os.path.abspath(found)  # a link into an environment stays one


def chat_url(processes: Processes) -> str:
    child = processes.start("chat", ["-m", "peers.chat_server"])
    return processes.wait_for_line(child, "Running on ").split()[-2] + "/v1"


def worker(processes: Processes, setting: dict[str, Any], args: argparse.Namespace) -> Side:
    redis_url = processes.redis()
    env = add_file(TASK)
    flags = ["--redis", redis_url, "--broker", redis_url, "--engine", setting["engine_url"]]
    flags += ["-c", str(args.concurrency), "--env", TASK, "--tokenizer", setting["tokenizer"]]
    child = processes.start("worker", ["-m", "rollq", "worker", *flags])
    processes.wait_for_line(child, ": ready, ")
    rounds = iter(range(1000))

    def play(count: int) -> None:
        with Client(redis_url, run=f"round-{next(rounds)}") as client:
            jobs = (Job(env=env, task=index % TASKS) for index in range(count))
            client.submit(jobs, ahead=count)
            client.seal()
            wait_until_done(client, count)
            require_perfect("rollq", rollouts(client))

    return Side(child.pid, play, args.rollouts)


class Peer:
    """A process of a script in peers/, which plays when it is told to."""

    def __init__(self, folder: Path, setting: dict[str, Any], name: str, python: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        file = folder / "setting.json"
        file.write_text(json.dumps(setting))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, "-m", f"peers.{SCRIPTS[name]}", str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,  # Agent Lightning writes logs where it is
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))},
            )
        self._read()

    def play(self, count: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([index % TASKS for index in range(count)]) + "\n")
        self.process.stdin.flush()
        require_perfect(self.name, [{"reward": reward} for reward in json.loads(self._read())])

    def _read(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        return line or sys.exit(f"{self.name} ended:\n{self.log.read_text()[-2000:]}")


def memory(pid: int, kind: str) -> float:
    """Megabytes of the process and its children."""
    return sum(resident_mb(one, kind) for one in family(pid))


def figures(side: Side, bare: Side) -> dict[str, Any]:
    pairs = [one / other for one, other in zip(side.ms_a_turn, bare.ms_a_turn, strict=True)]
    return {
        "ms_a_turn": statistics.median(side.ms_a_turn),
        "least": min(side.ms_a_turn),
        "of_bare": statistics.median(pairs),
        "of_bare_each": pairs,
        "rest_mb": side.rest_mb,
        "peak_mb": side.peak_mb,
    }


def report(result: dict[str, Any], args: argparse.Namespace) -> None:
    print(f"{args.rollouts} rollouts of {TURNS} turns a round, {args.concurrency} at once\n")
    head = ["side", "CPU ms a turn", "least", "of bare", "of rollq", "MB before", "MB at most"]
    rows = [
        [
            f"{name} ({KEEPS[name]})",
            ms(one["ms_a_turn"] / 1000),
            ms(one["least"] / 1000),
            f"{one['of_bare']:.2f}",
            f"{one['ms_a_turn'] / result['rollq']['ms_a_turn']:.2f}",
            f"{one['rest_mb']:.0f}",
            f"{one['peak_mb']:.0f}",
        ]
        for name, one in result.items()
    ]
    print(table(head, rows))


if __name__ == "__main__":
    sys.exit(main())
