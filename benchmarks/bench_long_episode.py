"""Does a turn cost more late in an agent program's episode of 200 turns and 100,000 tokens? How
soon is it resumed?

A worker's job runner plays in this process, one job after the other: rollq's own loop, and an agent
program in a child process (long_agent.py) in each dialect, so that the agent's own CPU is not in
it. A figure is this process's CPU from one request to the engine to the next. Then each is played
again up to turn 190, given back there, and resumed: the seconds from the claim to the next request.
Exit code 1 when a target is missed.

    python benchmarks/bench_long_episode.py [--tokenizer DIR] [--json]
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import long_episodes
from checks import Check, add_tokenizer, conclude, parser_for
from cpu import require_linux
from in_process import InProcess
from processes import Processes
from tables import table

from rollq.job import Budget
from rollq_worker.agents.dialects import chat_completions, messages
from rollq_worker.agents.dialects.responses import Responses
from rollq_worker.agents.known_agents import add_file
from rollq_worker.failures import Drained
from rollq_worker.text.whole_text import whole_json

TURNS, FIELDS = 200, 20
"""Turns, and the length of what each looks up: 500 tokens a turn with Qwen's vocabulary."""
ENV = f"{long_episodes.NAME}:{TURNS}x{FIELDS}"
BUDGET = Budget(max_turns=TURNS + 1, max_tokens=1_000_000)
EARLY, LATE = range(10, 20), range(189, 199)
RESUMED = 190
EPISODES = 5
READERS: dict[str, Any] = {"chat": chat_completions, "messages": messages, "responses": Responses}
"""What has the `read` of each dialect. What a chained request stands for, its endpoint knows."""
FORMS = ("loop", *READERS, "chained")
FLAT, OF_READING = 2.2, 2.5
"""A request also comes through a socket, and all ids go to the engine."""
OF_RESUMED_LOOP = 8.0
"""Target: seconds to resume an agent program, a new process, over those of rollq's own loop."""
ENGINE = (
    "import sys; from rollq_worker.replay_engine.server import serve; serve(**eval(sys.argv[1]))"
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    add_tokenizer(parser)
    args = parser.parse_args(argv)
    require_linux()
    with Processes() as processes:
        long_episodes.install(processes.folder)
        player = Player(processes, args.tokenizer)
        found = {form: player.measure(form) for form in FORMS}
    rows = [[form, *(f"{found[form][key]:.2f}" for key in HEADS)] for form in FORMS]
    print("\n" + table(["", *HEADS.values()], rows))
    checks = []
    for form, figures in found.items():
        if form in READERS:
            what = "what the late turn costs more, over what reading its request costs more"
            checks.append(Check(f"{form}: {what}", figures["growth"], OF_READING))
        else:
            checks.append(
                Check(f"{form}: turn {LATE[-1]} over turn {EARLY[-1]}", figures["growth"], FLAT)
            )
        checks.append(
            Check(f"{form}: bytes of the journal a turn, late over early", figures["journal"], 1.1)
        )
        if form != "loop":
            checks.append(
                Check(
                    f"{form}: resumed at turn {RESUMED}, over loop",
                    figures["resumed_s"] / found["loop"]["resumed_s"],
                    OF_RESUMED_LOOP,
                )
            )
    return conclude(found, checks, args.json)


HEADS = {
    "tokens": "tokens",
    "early_ms": f"CPU ms, turn {EARLY[-1]}",
    "late_ms": f"turn {LATE[-1]}",
    "read_early_ms": f"of it reading, turn {EARLY[-1]}",
    "read_late_ms": f"turn {LATE[-1]} ",
    "resumed_s": f"s to resume at turn {RESUMED}",
}


class Player:
    """Plays long episodes in this process."""

    def __init__(self, processes: Processes, tokenizer: str | None) -> None:
        options = {"port": 0, "env": ENV, "tokenizer": tokenizer, "context_length": 1_000_000}
        child = processes.start("engine", ["-c", ENGINE, repr(options)])
        url = processes.wait_for_line(child, "rollq engine: ready at ").split()[-1]
        self._player = InProcess(processes.redis(), url, tokenizer)
        self._agent = add_file(str(Path(__file__).with_name("long_agent.py")))
        self._begun: list[float] = []
        self._asked: list[Any] = []
        """The parsed bodies of the episode's requests."""
        self._stop_at = 0
        self._player.watch_turns(self._begin)
        for reader in READERS.values():
            reader.read = self._noting(reader.read)

    def _begin(self) -> None:
        self._begun.append(time.process_time())
        if len(self._begun) == self._stop_at:
            raise Drained("the worker is stopping")

    def _noting(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            self._asked.append(args[-1])
            return read(*args)

        return noted

    def measure(self, form: str) -> dict[str, float]:
        """The figures of one form, medians of some episodes; the first one, in which everything is
        new, is not counted.
        """
        played = [self._play(form, n) for n in range(EPISODES + 1)][1:]
        medians = {key: statistics.median(one[key] for one in played) for key in played[0]}
        return {
            **medians,
            "resumed_s": statistics.median(self._resume(form, n) for n in range(EPISODES)),
        }

    def _submit(self, run: str, form: str, task: int) -> str:
        options: Any = (
            {} if form == "loop" else {"agent": self._agent, "agent_args": {"dialect": form}}
        )
        [job_id] = self._player.submit(run, ENV, "train", [task], budget=BUDGET, **options)
        self._begun.clear()
        self._asked.clear()
        return job_id

    def _play(self, form: str, task: int) -> dict[str, float]:
        job_id = self._submit(f"whole-{form}", form, task)
        played = self._player.runner.run(job_id)
        if played.get("reward") != 1.0:
            sys.exit(f"{job_id} ended as {played}: it is not the work to be measured")
        took = [(after - before) * 1000 for before, after in pairwise(self._begun)]
        early, late = (statistics.median(took[n - 1] for n in turns) for turns in (EARLY, LATE))
        read_early, read_late = (self._reading(form, turns[-1]) for turns in (EARLY, LATE))
        entries = [
            len(entry) for entry in self._player.runner.ledger_of(f"whole-{form}").journal(job_id)
        ]
        turn = len(entries) // TURNS
        written = [
            sum(entries[turns[0] * turn : (turns[-1] + 1) * turn]) for turns in (EARLY, LATE)
        ]
        return {
            "tokens": played["tokens"],
            "early_ms": early,
            "late_ms": late,
            "read_early_ms": read_early,
            "read_late_ms": read_late,
            "growth": (late - early) / (read_late - read_early)
            if form in READERS
            else late / early,
            "journal": written[1] / written[0],
        }

    def _reading(self, form: str, turn: int) -> float:
        """Milliseconds for which the request of a turn is read, the fastest of some."""
        if form not in READERS:
            return 0.0
        reader: Any = READERS[form]() if form == "responses" else READERS[form]
        text = json.dumps(self._asked[turn]).encode()
        best = float("inf")
        for _ in range(15):
            begun = time.process_time()
            reader.read(whole_json(json.loads(text)))
            best = min(best, time.process_time() - begun)
        return best * 1000

    def _resume(self, form: str, task: int) -> float:
        """Seconds from the second claim of a job to its next request to the engine."""
        job_id = self._submit(f"resumed-{form}", form, task)
        self._stop_at = RESUMED
        played = self._player.runner.run(job_id)
        if played["stop"] != "released":
            sys.exit(f"{job_id} ended as {played}: it was to be given back")
        self._begun.clear()
        self._stop_at = 1
        begun = time.monotonic()
        self._player.runner.run(job_id)
        self._stop_at = 0
        return time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
