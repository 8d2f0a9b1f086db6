"""Jobs of a real ledger, what runs them, ledger methods that fail first, and a broker without a
broker.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rollq.job import Budget, Job
from rollq.ledger.keys import QUEUE
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim, JobMessage
from rollq.ledger.workers.live_workers import LiveWorker
from rollq.settings import Settings
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.job_task import JobRunner
from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer


def claim(ledger: Ledger, task: int = 0, deadline_s: float = 1800.0, **more: Any) -> Claim:
    """Submit and claim job r/g<task>/0, with `more` of its fields."""
    job = Job(
        run="r",
        group=f"g{task}",
        env="shop",
        task=task,
        budget=Budget(deadline_s=deadline_s),
        **more,
    )
    ledger.submit([job])
    claimed = ledger.claim(job.id, worker="w", token=f"t{task}")
    assert isinstance(claimed, Claim)
    return claimed


def submit(ledger: Ledger, **job: Any) -> str:
    """Submit job r/g/0, with these fields. Returns its id."""
    made = Job(**{"run": "r", "group": "g", "env": "shop", "task": 0, **job})
    ledger.submit([made])
    return made.id


@contextmanager
def running(
    ledger: Ledger,
    engine_url: str,
    tokenizer: Tokenizer | None = None,
    pool: type[EnginePool] = EnginePool,
    **settings: Any,
) -> Iterator[JobRunner]:
    """A worker's job runner on that engine."""
    tokenizer = tokenizer or load_tokenizer(None)
    engine = pool([engine_url], vocab_size=tokenizer.vocab_size)
    made = Settings(engine_urls=(engine_url,), concurrency=4, **settings)
    yield JobRunner(made, ledger.redis, engine, tokenizer, "w", threading.Event())
    engine.close()


def drain_at(runner: JobRunner, ledger: Ledger, job_id: str, entries: int) -> None:
    """The worker is stopped once the job's journal has that many entries."""
    act_at(runner, ledger, job_id, entries, runner.draining.set)


def act_at(
    runner: JobRunner, ledger: Ledger, job_id: str, entries: int, act: Callable[[], object]
) -> None:
    """`act` once the job's journal has that many entries."""
    real_append = runner.ledger_of(ledger.run).append

    def append(*args: Any, **options: Any) -> None:
        real_append(*args, **options)
        if len(ledger.journal(job_id)) == entries:
            act()

    runner.ledger_of(ledger.run).append = append  # type: ignore[method-assign]


class FailsFirst:
    """Raises these errors, one a call, and then does what the method does."""

    def __init__(self, method: Callable[..., Any], *errors: Exception) -> None:
        self.method, self.errors = method, list(errors)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self.method(*args, **options)


class FakeBroker:
    """Sends to nowhere; `takes` is how many jobs of a call it accepts."""

    def __init__(self, takes: int = 1 << 30) -> None:
        self.takes = takes
        self.sent: list[str] = []
        """The ids of the jobs."""

    def send(self, messages: Sequence[JobMessage]) -> list[str]:
        taken = [message.job_id for message in messages][: self.takes]
        self.sent += taken
        return taken

    def backlog(self, queues: Collection[str] = (QUEUE,)) -> dict[str, int] | None:
        """All messages are in the default queue."""
        return {queue: len(self.sent) if queue == QUEUE else 0 for queue in queues}


def live_worker(
    name: str = "w", queues: Sequence[str] = (QUEUE,), tokenizer: str = "t"
) -> LiveWorker:
    return LiveWorker(
        name=name,
        queues=tuple(queues),
        tokenizer=tokenizer,
        template="c",
        engine="ready",
        slots=4,
        busy=0,
    )
