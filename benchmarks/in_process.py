"""A worker's job runner in this process and thread, for benchmarks that look inside a turn."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rollq.job import Job
from rollq.ledger.ledger import Ledger
from rollq.servers.connection import connect
from rollq.settings import Settings
from rollq_worker.engine.pool import EnginePool
from rollq_worker.environments import domain
from rollq_worker.process.job_task import JobRunner
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import load_tokenizer


class InProcess:
    """Plays jobs one after the other against a real Redis and an engine."""

    def __init__(self, redis_url: str, engine_url: str, tokenizer: str | None) -> None:
        self.connection = connect(redis_url)
        self.tokenizer = load_tokenizer(tokenizer)
        settings = Settings(
            redis_url=redis_url,
            broker_url=redis_url,
            engine_urls=(engine_url,),
            tokenizer=tokenizer,
        )
        stops = ChatRenderer(self.tokenizer).stop_ids
        self.engine = EnginePool([engine_url], stop_ids=stops, vocab_size=self.tokenizer.vocab_size)
        self.runner = JobRunner(
            settings, self.connection, self.engine, self.tokenizer, "bench", threading.Event()
        )

    def submit(self, run: str, env: str, split: str, tasks: Sequence[int], **job: Any) -> list[str]:
        """Submits jobs without sending them. Returns their ids."""
        ledger = Ledger(self.connection, run)
        count = domain(env).splits()[split]
        ids = []
        for task in tasks:
            one = Job(run=run, group=f"task-{task}", env=env, split=split, task=task % count, **job)
            ids += ledger.submit([one], send_in_s=3600.0).new
        return ids

    def play(self, job_id: str) -> int:
        """Returns the number of turns. Exits when the reward is not 1.0."""
        played = self.runner.run(job_id)
        if played.get("reward") != 1.0:
            sys.exit(f"{job_id} ended as {played}: it is not the work to be measured")
        return int(played["turns"])

    def watch_turns(self, begin: Callable[[], None]) -> None:
        """Calls `begin` at each request to the engine, where a turn begins."""
        generate = self.engine.generate

        def watched(*args: Any, **kwargs: Any) -> Any:
            begin()
            return generate(*args, **kwargs)

        self.engine.generate = watched  # type: ignore[method-assign]
