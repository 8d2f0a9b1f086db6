"""Where a worker's CPU goes: the parts of an episode, timed one by one in a single thread, and
Celery beside them.

The worker's own `JobRunner` plays tau2_2025:retail in this process against a real Redis and a
replay engine; the CPU of a part is the process's, because encoders have threads of their own,
without the parts inside it. The cost of messages is measured on a real worker process that gets
messages of jobs that are already done.

    python benchmarks/bench_worker.py [--tokenizer DIR] [--json]
"""

import functools
import gc
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from checks import add_tokenizer, conclude, parser_for
from cpu import cpu_seconds, require_linux
from in_process import InProcess
from processes import Processes
from tables import ms, table

from rollq.client.producing.broker import Broker
from rollq.env.customer_service import Conversation, ConversationDomain
from rollq.ledger.constants import NEW
from rollq.ledger.keys import QUEUE
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import JobMessage
from rollq.ledger.scripts import Scripts
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.exchange.http import EngineHttp
from rollq_worker.engine.exchange.prompts import PromptWriter
from rollq_worker.engine.pool import EnginePool
from rollq_worker.engine.sglang.server import SGLangServer
from rollq_worker.process.attempts import attempt
from rollq_worker.process.attempts.renderer_cache import RendererCache
from rollq_worker.process.job_task import JobRunner
from rollq_worker.tokens import tokenizer
from rollq_worker.tokens.injection_guard import ControlTokens, Guard
from rollq_worker.tokens.renderer import ChatRenderer

ENV, SPLIT = "tau2_2025:retail", "train"
WARM_UP, TASKS = 10, 40
MESSAGES = 400

PARTS = (
    ("engine: rest", EnginePool, "generate"),
    ("engine: rest", EngineClient, "sample"),
    ("engine: HTTP", EngineHttp, "post"),
    ("engine: HTTP", EngineHttp, "generate"),
    ("engine: write the request", PromptWriter, "write"),
    ("engine: write the request", SGLangServer, "write_body"),
    ("engine: check the ids", EngineClient, "_write_prompt"),
    ("engine: read the reply", SGLangServer, "read_reply"),
    ("renderer: chat template", tokenizer.Tokenizer, "render"),
    ("renderer: tokenise", tokenizer.Tokenizer, "encode_plain"),
    ("renderer: decode", tokenizer.Tokenizer, "decode"),
    ("renderer: guard", Guard, "hide"),
    ("renderer: guard", ControlTokens, "encode"),
    ("renderer: rest", ChatRenderer, "open"),
    ("renderer: rest", ChatRenderer, "bridge"),
    ("renderer: rest", ChatRenderer, "read"),
    ("ledger: encode", attempt, "encode_event"),
    ("ledger: encode", attempt, "encode_header"),
    ("ledger: Redis", Scripts, "call"),
    ("ledger: rest", Ledger, "claim"),
    ("ledger: rest", Ledger, "append"),
    ("ledger: rest", Ledger, "complete"),
    ("environment: open and reset", ConversationDomain, "open"),
    ("environment: open and reset", Conversation, "reset"),
    ("environment: step", Conversation, "step"),
    ("environment: grade", Conversation, "grade"),
    ("renderer: look up", RendererCache, "get"),
    ("agent loop and rest", JobRunner, "run"),
)
"""Name, owner and function of each part. A function that no longer exists counts in its caller and
is reported.
"""


class NestedTimer:
    """CPU seconds and calls by part, each part without the parts that it calls. For one thread."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.collector = 0.0
        """Seconds in the garbage collector; they count in the running part as well."""
        self._began = 0.0
        self._names = [""]
        self._inner = [0.0]
        self._thread = threading.get_ident()
        gc.callbacks.append(self._collect)

    def watch(self, name: str, owner: Any, attribute: str) -> bool:
        """Replaces the function with a timed one. Returns False when there is none."""
        function = getattr(owner, attribute, None)
        if function is None:
            return False
        setattr(owner, attribute, self._timed(name, function))
        return True

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if name == self._names[-1] or threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._names.append(name)
            self._inner.append(0.0)
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.process_time() - began
                self._names.pop()
                self.seconds[name] += took - self._inner.pop()
                self.calls[name] += 1
                self._inner[-1] += took

        return timed

    def _collect(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.process_time()
        else:
            self.collector += time.process_time() - self._began

    def reset(self) -> None:
        self.seconds.clear()
        self.calls.clear()
        self.collector = 0.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    add_tokenizer(parser)
    args = parser.parse_args(argv)
    require_linux()
    with Processes() as processes:
        engine_url = processes.engine(ENV, args.tokenizer)
        redis_url = processes.redis()
        result = measure(redis_url, engine_url, args.tokenizer)
        result["ms_a_message"] = measure_messages(processes, redis_url, engine_url, args.tokenizer)
    report(result)
    return conclude(result, [], args.json)


def measure(redis_url: str, engine_url: str, where: str | None) -> dict[str, Any]:
    """Plays the tasks in this thread."""
    player = InProcess(redis_url, engine_url, where)
    for id in player.submit("warm-up", ENV, SPLIT, range(TASKS, TASKS + WARM_UP)):
        player.play(id)
    clock = NestedTimer()
    gone = [
        attribute for name, owner, attribute in PARTS if not clock.watch(name, owner, attribute)
    ]
    jobs = player.submit("measured", ENV, SPLIT, range(TASKS))
    clock.reset()
    began = time.process_time()
    turns = sum(map(player.play, jobs))
    total = time.process_time() - began
    parts = {name: (seconds, clock.calls[name]) for name, seconds in clock.seconds.items()}
    return {
        "turns": turns / len(jobs),
        "ms_a_turn": total / turns * 1000,
        "ms_a_rollout": total / len(jobs) * 1000,
        "parts_ms_a_turn": {name: seconds / turns * 1000 for name, (seconds, _) in parts.items()},
        "collector_ms_a_turn": clock.collector / turns * 1000,
        "gone": gone,
        "calls_a_turn": {name: calls / turns for name, (_, calls) in parts.items()},
    }


def measure_messages(
    processes: Processes, redis_url: str, engine_url: str, where: str | None
) -> float:
    """Milliseconds of a worker's CPU for one message whose claim is refused."""
    child = processes.worker(redis_url, engine_url, 16, where)
    broker = Broker(redis_url)
    messages = [JobMessage(f"measured/task-{task}/0", QUEUE, NEW) for task in range(TASKS)]

    def send(count: int) -> None:
        for _ in range(count // TASKS):
            broker.send(messages)
        while any((broker.backlog() or {}).values()):
            time.sleep(0.05)
        time.sleep(0.5)  # the last claims are still being refused

    send(2 * TASKS)
    before = cpu_seconds(child.pid)
    began = time.monotonic()
    send(MESSAGES)
    spent, wall = cpu_seconds(child.pid) - before, time.monotonic() - began
    time.sleep(wall)
    idle = cpu_seconds(child.pid) - before - spent
    broker.close()
    child.stop()
    return (spent - idle) / MESSAGES * 1000


def report(result: dict[str, Any]) -> None:
    each, calls = result["parts_ms_a_turn"], result["calls_a_turn"]
    rows = [
        [
            name,
            ms(each[name] / 1000),
            f"{each[name] / result['ms_a_turn']:.0%}",
            f"{calls[name]:.2f}",
        ]
        for name in sorted(each, key=lambda name: -each[name])
    ]
    together = ["together", ms(result["ms_a_turn"] / 1000), "100%", ""]
    print(f"{TASKS} rollouts of {ENV}, one after the other, {result['turns']:.1f} turns each\n")
    print(table(["part", "CPU ms a turn", "share", "calls a turn"], [*rows, together]))
    print(f"\nof it in the garbage collector: {ms(result['collector_ms_a_turn'] / 1000)} ms a turn")
    if result["gone"]:
        print(f"counted in their callers: {', '.join(result['gone'])}")
    print(
        f"together {ms(result['ms_a_rollout'] / 1000)} ms a rollout, and Celery's message "
        "with a claim that is refused:"
    )
    print(f"{ms(result['ms_a_message'] / 1000)} ms")


if __name__ == "__main__":
    sys.exit(main())
