"""`Client.episodes`: who waits for an episode gets it or an error."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rollq.client import episodes as module
from rollq.client.client import Client
from rollq.errors import ClientClosed, ContractError, JobConflict, LedgerError
from rollq.job import Job
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.ledger import Ledger
from rollq.trajectory import Trajectory
from tests.rollq.samples import job, play, reader
from tests.servers import Server


async def submitted(ledger: Ledger, *groups: str) -> None:
    while {*reader(ledger).group_states(groups)} != {"open"}:
        await asyncio.sleep(0.02)


def test_an_episode_that_another_process_acknowledged_meanwhile(
    client: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 1.0)

    async def acknowledged() -> None:
        waiting = asyncio.create_task(client.episodes(1).play(job(0, "g", size=1), 0))
        await submitted(ledger, "g")
        await asyncio.sleep(0.1)  # the look that follows a submission is over
        play(ledger, "r/g/0")
        Deliveries(ledger.redis, "r").ack("another/0", ["g"])
        await asyncio.wait_for(waiting, 10)

    with pytest.raises(LedgerError, match="r/g/0 was acknowledged"):
        asyncio.run(acknowledged())


def test_a_group_that_another_process_acknowledged_keeps_no_other(
    client: Client, ledger: Ledger
) -> None:
    async def played() -> None:
        episodes = client.episodes(0)
        for name in ("a", "b"):
            waiting = asyncio.create_task(episodes.play(job(0, name, size=1), 0))
            await submitted(ledger, name)
            play(ledger, f"r/{name}/0")
            await asyncio.wait_for(waiting, 10)
        Deliveries(ledger.redis, "r").ack("another/0", ["a"])
        waiting = asyncio.create_task(episodes.play(job(0, "c", size=1), 1))
        while reader(ledger).group_states(["b"]) != ["acked"]:
            await asyncio.sleep(0.02)
        waiting.cancel()

    asyncio.run(asyncio.wait_for(played(), 20))


def test_what_is_refused_leaves_the_first_alone(client: Client, ledger: Ledger) -> None:
    async def both() -> Trajectory:
        episodes = client.episodes(1)
        first = asyncio.create_task(episodes.play(job(0, "g", size=1), 0))
        await submitted(ledger, "g")
        with pytest.raises(JobConflict):
            await episodes.play(job(0, "g", size=1, seed=99), 0)
        for step in (None, "1", -1):
            with pytest.raises(ContractError, match="step must be a whole number"):
                await episodes.play(job(0, "h", size=1), step)  # type: ignore[arg-type]
        play(ledger, "r/g/0")
        return await asyncio.wait_for(first, 10)

    assert asyncio.run(both()).job.id == "r/g/0"


@pytest.mark.parametrize("keep_steps", ["20", None, -1, 2.0])
def test_steps_that_are_no_whole_number_are_refused(client: Client, keep_steps: Any) -> None:
    with pytest.raises(ContractError, match="keep_steps must be a whole number of at least 0"):
        client.episodes(keep_steps)


@pytest.mark.parametrize("several", [{"size": 2}, {"size": 1, "spare": 1}])
def test_a_job_of_a_group_of_several_is_refused(client: Client, several: dict[str, int]) -> None:
    with pytest.raises(
        ContractError, match=r"job r/g/0: .* submit it with size 1 and without spare"
    ):
        asyncio.run(asyncio.wait_for(client.episodes(1).play(job(0, "g", **several), 0), 10))
    assert client.stats()["submitted"] == 0


def test_a_client_that_closes_ends_the_waits(client: Client, ledger: Ledger) -> None:
    async def closed() -> None:
        episodes = client.episodes(1)
        waiting = asyncio.create_task(episodes.play(job(0, "g", size=1), 0))
        await submitted(ledger, "g")
        await asyncio.to_thread(client.close)
        with pytest.raises(ClientClosed, match="can be asked for again"):
            await asyncio.wait_for(waiting, 10)
        await episodes.play(job(0, "h", size=1), 0)

    with pytest.raises(ClientClosed):
        asyncio.run(closed())


def test_a_client_closes_while_redis_is_away(tmp_path: Path) -> None:
    server = Server(tmp_path)
    client = Client(server.url, run="r")

    async def left() -> None:
        waiting = asyncio.create_task(client.episodes(1).play(job(0, "g", size=1), 0))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(2 * module.LOOK_S)  # it asks Redis now
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, 15)
        assert not closing.is_alive()
        waiting.cancel()

    asyncio.run(left())


def test_jobs_without_a_group_are_groups_of_their_own(client: Client, ledger: Ledger) -> None:
    async def both() -> list[Trajectory]:
        episodes = client.episodes(1)
        names = [f"shop.train.{task}" for task in range(2)]
        waits = [episodes.play(Job(env="shop", task=task, size=1), 0) for task in range(2)]
        playing = asyncio.gather(*waits)
        await submitted(ledger, *names)
        for name in names:
            play(ledger, f"r/{name}/0")
        return await asyncio.wait_for(playing, 10)

    assert [episode.job.task for episode in asyncio.run(both())] == [0, 1]
