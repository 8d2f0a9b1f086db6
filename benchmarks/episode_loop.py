"""The worker's own agent loop without queue, ledger, journal and lease: what is left is what
durability costs.

Threads, each with `play` of rollq_worker.episode, the worker's engine client and renderer, and a
journal that keeps nothing. It is told what to play as bare_loop.py is.

    python episode_loop.py SETTING.json
"""

import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from bare_loop import serve

from rollq.events import Event
from rollq.job import Job
from rollq_worker.engine.pool import EnginePool
from rollq_worker.environments import domain
from rollq_worker.episode.loop import play
from rollq_worker.process.attempts.renderer_cache import RendererCache
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import load_tokenizer
from rollq_worker.users.scripted import ScriptedUser


class NoJournal:
    """Implements protocols.Journal."""

    def append(self, event: Event) -> None:
        pass

    def check(self) -> None:
        pass


def rollouts(setting: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    world = domain(setting["env"])
    split = setting["split"]
    tokenizer = load_tokenizer(setting["tokenizer"])
    stops = ChatRenderer(tokenizer).stop_ids
    engine = EnginePool([setting["engine_url"]], stop_ids=stops, vocab_size=tokenizer.vocab_size)
    renderers = RendererCache(tokenizer)
    groups = count()

    def rollout(index: int) -> dict[str, Any]:
        job = Job(run="loop", group=f"{next(groups)}", env=setting["env"], split=split, task=index)
        environment = world.open(split, index, {})
        task = world.task(split, index)
        played = play(
            job,
            engine=engine,
            renderer=renderers.get(job, list(environment.tools)),
            environment=environment,
            user=ScriptedUser(task.opening, task.replies),
            journal=NoJournal(),
        )
        engine.end(job.id)
        return {"reward": played.reward, "turns": played.turns, "tokens": len(played.tokens)}

    return rollout


if __name__ == "__main__":
    serve(sys.argv[1], rollouts)
