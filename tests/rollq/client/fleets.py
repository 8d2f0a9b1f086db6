"""Live workers and their engines, as they tell of themselves."""

from dataclasses import replace

from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.live_workers import READY, EngineUse, LiveWorker, register

WORKER = LiveWorker(
    name="w", queues=("rollq",), tokenizer="t1", template="c1", engine=READY, slots=4, busy=0
)


def live(ledger: Ledger, name: str = "w", **changes: object) -> None:
    register(ledger.redis, replace(WORKER, name=name, **changes))  # type: ignore[arg-type]


def used(url: str, state: str, episodes: int = 0) -> EngineUse:
    return EngineUse(url=url, state=state, episodes=episodes)
