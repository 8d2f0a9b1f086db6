"""The bound: a run's episodes again, by a bare asyncio client with as many at once.

Each turn is asked for with the same sampling parameters and stop tokens, behind the same prompt and
observations and the client's own earlier replies. So replies have lengths of their own, as the
policy draws them: a client that fixed them with ignore_eos would spare the engine the look for stop
tokens, which costs SGLang 0.5.23 microseconds a token. There is no ledger, journal or environment,
and nothing is checked or retried. Episodes begin in the order of the run.
"""

import asyncio
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import aiohttp
import orjson
from gpu.turns import Turn

from rollq.events import Finish, Sampled
from rollq.trajectory import Trajectory


def replay(
    trajectories: Sequence[Trajectory], engine: str, slots: int, stop_ids: Sequence[int]
) -> list[list[Turn]]:
    """The turns of each episode as the client saw them. The trajectories have one trace each.
    Raises aiohttp.ClientError.
    """
    return asyncio.run(
        _replay(sorted(trajectories, key=lambda one: one.header.at), engine, slots, stop_ids)
    )


async def _replay(
    trajectories: Sequence[Trajectory], engine: str, slots: int, stop_ids: Sequence[int]
) -> list[list[Turn]]:
    todo = iter(trajectories)
    episodes = list[list[Turn]]()
    limits = aiohttp.TCPConnector(
        limit=0, keepalive_timeout=2.0
    )  # shorter than the 5 s after which a server hangs up
    timeout = aiohttp.ClientTimeout(total=1800)
    async with aiohttp.ClientSession(connector=limits, timeout=timeout) as session:
        slot = partial(_slot, session, f"{engine}/generate", todo, episodes, stop_ids)
        await asyncio.gather(*(slot() for _ in range(slots)))
    return episodes


async def _slot(
    session: aiohttp.ClientSession,
    url: str,
    todo: Iterator[Trajectory],
    episodes: list[list[Turn]],
    stop_ids: Sequence[int],
) -> None:
    for trajectory in todo:
        job = trajectory.job
        history = array("I")
        turns = list[Turn]()
        episodes.append(turns)
        limits = {"max_new_tokens": job.budget.max_new_tokens, "stop_token_ids": stop_ids}
        sampling = {**job.sampling, **limits, "skip_special_tokens": False}
        for event in trajectory.spans:
            if not isinstance(event, Sampled):
                history.extend(event.ids)
                continue
            turn, ids, finish = await _ask(session, url, history, sampling)
            turns.append(turn)
            history.extend(ids)
            if finish == Finish.LENGTH:
                break  # as an episode ends


async def _ask(
    session: aiohttp.ClientSession, url: str, history: array, sampling: Mapping[str, Any]
) -> tuple[Turn, Sequence[int], str]:
    body = {
        "rid": f"bare-{uuid4().hex}",
        "input_ids": history.tolist(),
        "return_logprob": True,
        "sampling_params": sampling,
    }
    at = time.time()
    async with session.post(
        url, data=orjson.dumps(body), headers={"Content-Type": "application/json"}
    ) as response:
        response.raise_for_status()
        reply = orjson.loads(await response.read())
    ids, meta = reply["output_ids"], reply["meta_info"]
    turn = Turn(at, time.time() - at, len(ids), len(history), meta.get("cached_tokens", 0))
    return turn, ids, meta["finish_reason"]["type"]
