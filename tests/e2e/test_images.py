"""Images on their way from an environment to a trainer: a killed worker, an isolated environment,
real Redis.
"""

import os
import signal
from pathlib import Path

import pytest

from rollq import Client, Job
from rollq.env import Image
from rollq.images import IMAGES, images_of_segments
from tests.e2e.stack import Stack
from tests.rollq_worker import counting
from tests.rollq_worker.pictures import write_vision_tokenizer

SIZE = 2


@pytest.fixture
def with_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes find examples/count_squares.py as the environment of an installed package."""
    site = tmp_path / "site"
    found = site / f"{counting.NAME}-1.dist-info"
    found.mkdir(parents=True)
    (site / f"{counting.NAME}.py").write_text(counting.EXAMPLE.read_text())
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {counting.NAME}\nVersion: 1\n")
    (found / "entry_points.txt").write_text(
        f"[rollq.environments]\n{counting.NAME} = {counting.NAME}:load\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize("isolated", ["", counting.NAME])
@pytest.mark.usefixtures("with_example")
def test_a_trainer_gets_the_images_of_resumed_episodes(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated: str
) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer = ("--tokenizer", str(write_vision_tokenizer(folder)))
    stack.engine("--env", counting.NAME, "--latency", "1", *tokenizer)
    monkeypatch.setenv("ROLLQ_ISOLATE", isolated)
    first = stack.worker(SIZE, *tokenizer)
    with Client(stack.redis_url, run="r") as client:
        client.submit([Job(env=counting.NAME, task=task, size=SIZE) for task in range(2)])
        client.seal()
        stack.wait(
            lambda: client.stats()["leased"] == SIZE and _turns(client) > 0, 150, "the first turns"
        )
        first.send_signal(signal.SIGKILL)
        stack.worker(4, *tokenizer)
        [batch] = client.batches(2, timeout=150, extras=[IMAGES])
        stats = client.stats()
        batch.ack()
    assert stats["resumed"] > 0
    for trajectory in batch.trajectories:
        assert trajectory.reward == 1.0
        (row,), (files,) = trajectory.segments(), images_of_segments(trajectory)
        sizes = [(Image(data).reference.width, Image(data).reference.height) for data in files]
        assert sizes == [(224, 224)] * 3 and len(set(files)) == 3
        assert len(row.prompt_ids) + len(row.response_ids) > 3 * 64


def _turns(client: Client) -> int:
    """Entries of journals in Redis beyond header and first prompt."""
    ids = [
        f"r/{counting.NAME}.train.{task}/{sample}" for task in range(2) for sample in range(SIZE)
    ]
    return sum(max(0, len(client.job(id).journal) - 2) for id in ids)
