"""The bound: a run's requests again, from a bare asyncio client with as many episodes at once.

Each turn asks for exactly as many tokens as the run's turn got, behind the same prompt and observations and the
client's own earlier replies, so the engine has the same work. There is no ledger, journal or environment, and nothing
is checked or retried. Episodes begin in the order of the run.
"""

import asyncio
import time
from array import array
from collections.abc import Iterator, Sequence

import aiohttp
import orjson
from gpu.turns import Turn

from rollq.events import Sampled
from rollq.trajectory import Trajectory


def replay(trajectories: Sequence[Trajectory], engine: str, slots: int) -> list[Turn]:
    """The turns as the client saw them. The trajectories have one trace each. Raises aiohttp.ClientError."""
    return asyncio.run(_replay(sorted(trajectories, key=lambda one: one.header.at), engine, slots))


async def _replay(trajectories: Sequence[Trajectory], engine: str, slots: int) -> list[Turn]:
    todo, turns = iter(trajectories), []
    limits = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)  # shorter than the 5 s after which a server hangs up
    timeout = aiohttp.ClientTimeout(total=1800)
    async with aiohttp.ClientSession(connector=limits, timeout=timeout) as session:
        await asyncio.gather(*(_slot(session, f"{engine}/generate", todo, turns) for _ in range(slots)))
    return turns


async def _slot(session: aiohttp.ClientSession, url: str, todo: Iterator[Trajectory], turns: list[Turn]) -> None:
    for trajectory in todo:
        history = array("I")
        for event in trajectory.spans:
            if isinstance(event, Sampled):
                turn, ids = await _ask(session, url, trajectory, history, event)
                turns.append(turn)
                history.extend(ids)
            else:
                history.extend(event.ids)


async def _ask(
    session: aiohttp.ClientSession, url: str, trajectory: Trajectory, history: array, event: Sampled
) -> tuple[Turn, Sequence[int]]:
    job = trajectory.job
    sampling = {**job.sampling, "max_new_tokens": len(event.ids), "ignore_eos": True, "skip_special_tokens": False}
    body = {
        "rid": f"bare-{job.id}-{event.turn}-{time.monotonic_ns()}",
        "input_ids": history.tolist(),
        "return_logprob": True,
        "sampling_params": sampling,
    }
    at = time.time()
    async with session.post(url, data=orjson.dumps(body), headers={"Content-Type": "application/json"}) as response:
        response.raise_for_status()
        reply = orjson.loads(await response.read())
    ids = reply["output_ids"]
    cached = reply["meta_info"].get("cached_tokens", 0)
    return Turn(at, time.time() - at, len(ids), len(history), cached), ids
