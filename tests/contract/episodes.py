"""Whole episodes against a server, seen by a recording proxy, while an operator gets in the way."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rollq.export.record import record
from rollq.job import Job
from rollq.trajectory import Sampled, Trajectory
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.environments import domain
from rollq_worker.episode.loop import play
from rollq_worker.episode.token_checks import Invariants
from rollq_worker.fakes import FakeJournal
from rollq_worker.tokens.selfcheck.check import checked_renderer
from rollq_worker.users import user_factory
from tests.contract.conftest import Server
from tests.recorder import Recorder, recording

UNFLUSHED = "Weights were updated, but the cache was not flushed"
"""SGLang's word for new weights that are in use although it answers 400: a turn went on before it could flush."""


@dataclass(frozen=True)
class Stage:
    """A server behind a proxy, and a client of the proxy."""

    server: Server
    proxy: Recorder
    engine: SGLangEngine

    def play(self, job: Job) -> Trajectory:
        """One episode, as a worker plays it."""
        tokenizer, world = self.server.tokenizer, domain(job.env)
        environment = world.open(job.split, job.task, {})
        task = world.task(job.split, job.task)
        return play(
            job,
            engine=self.engine,
            renderer=checked_renderer(tokenizer, list(environment.tools)),
            environment=environment,
            user=user_factory(job.user, task, seed=job.seed, endpoints={}, check=lambda: None),
            journal=FakeJournal(),
        )

    def replies(self, job: Job) -> list[tuple[list[int], dict[str, Any]]]:
        """What the proxy saw: the ids sent and the body that came back, call by call."""
        return [
            (call["request"]["input_ids"], call["reply"])
            for call in self.proxy.calls()
            if call["headers"]["X-SMG-Routing-Key"] == job.id and call["status"] == 200
        ]

    def check(self, trajectory: Trajectory) -> None:
        """The trajectory is, id for id, what the proxy saw, and holds what every trajectory must."""
        seen = self.replies(trajectory.job)
        sent = [ids for ids, _ in seen]
        said = [reply["output_ids"] for _, reply in seen]
        for before, reply, after in zip(sent, said, sent[1:], strict=False):
            assert after[: len(before) + len(reply)] == before + reply
        assert trajectory.tokens.tolist() == sent[-1] + said[-1]
        assert [t for t, bit in zip(trajectory.tokens, trajectory.mask, strict=True) if bit] == list(chain(*said))
        entries = [entry for _, reply in seen for entry in reply["meta_info"].get("output_token_logprobs", ())]
        recorded = [p for p, bit in zip(trajectory.logprobs, trajectory.mask, strict=True) if bit]
        assert recorded == [entry[0] for entry in entries] or all(
            abs(p - entry[0]) < 1e-6 * max(1.0, abs(p)) for p, entry in zip(recorded, entries, strict=True)
        )
        spans = [
            version
            for _, reply in seen
            for span in reply["meta_info"].get("weight_versions", ())
            for version in [span["version"]] * (span["end"] - span["start"])
        ]
        assert [v for v in trajectory.versions if v is not None] == spans
        follow(trajectory, self.server)


def follow(trajectory: Trajectory, server: Server) -> None:
    """The invariants hold."""
    renderer = checked_renderer(server.tokenizer, list(domain(trajectory.job.env).open("train", 0, {}).tools))
    checks = Invariants(trajectory.job, renderer)
    for event in trajectory.events:
        checks.follow(event)


@contextmanager
def stage(server: Server, folder: Path) -> Iterator[Stage]:
    tokenizer = server.tokenizer
    stops = [tokenizer.added_tokens["<|im_end|>"], *tokenizer.eos_ids]
    with recording(server.url, folder / "calls.jsonl") as proxy:
        engine = SGLangEngine(proxy.url, stop_ids=stops, vocab_size=tokenizer.vocab_size)
        try:
            yield Stage(server, proxy, engine)
        finally:
            engine.close()


class Operator:
    """Does to a server what its operators do: aborts, pauses, new weights under new names (the same ones in fact)."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.server = stage.server
        self.versions = [self.server.get("/model_info").json()["weight_version"]]
        self.model = self.server.get("/model_info").json()["model_path"]

    def new_version(self) -> str:
        self.versions.append(f"w{len(self.versions)}")
        return self.versions[-1]

    def order(self, path: str, **body: Any) -> None:
        answer = self.server.post(path, body)
        assert answer.status_code == 200 or UNFLUSHED in answer.text, f"{path}: {answer.text}"

    def abort_by_id(self) -> None:
        self.stage.engine.abort_running()

    def abort_all(self) -> None:
        self.order("/abort_request", abort_all=True)

    def rename(self) -> None:
        self.order("/update_weight_version", new_version=self.new_version(), abort_all_requests=False)

    def rename_and_abort(self) -> None:
        self.order("/update_weight_version", new_version=self.new_version())

    def load(self, **body: Any) -> None:
        self.order("/update_weights_from_disk", model_path=self.model, weight_version=self.new_version(), **body)

    def load_and_abort(self) -> None:
        self.load(abort_all_requests=True)

    def pause_in_place(self) -> None:
        self._paused("in_place", lambda: self.load(flush_cache=False))

    def pause_retract(self) -> None:
        self._paused("retract", self.load)

    def pause_abort(self) -> None:
        self._paused("abort", self.load)

    def _paused(self, mode: str, then: Callable[[], None]) -> None:
        self.order("/pause_generation", mode=mode)
        try:
            then()
        finally:
            self.order("/continue_generation")

    @property
    def everything(self) -> list[Callable[[], None]]:
        return [
            self.abort_all,
            self.pause_in_place,
            self.abort_by_id,
            self.pause_retract,
            self.rename,
            self.pause_abort,
            self.rename_and_abort,
            self.load_and_abort,
        ]


def play_disturbed(stage: Stage, jobs: Sequence[Job], at_once: int, seconds: tuple[float, float]) -> list[Trajectory]:
    """Play the jobs while an operator does everything in turn, so many seconds apart; sums up into `stage`."""
    operator, done = Operator(stage), threading.Event()
    chance = random.Random(5)

    def operate() -> None:
        while True:
            for order in operator.everything:
                if done.wait(chance.uniform(*seconds)):
                    return
                order()

    with ThreadPoolExecutor(at_once + 1) as pool:
        operating: Future[None] = pool.submit(operate)
        try:
            trajectories = list(pool.map(stage.play, jobs))
        finally:
            done.set()
        operating.result(60)
    return trajectories


def write(path: Path, trajectories: Sequence[Trajectory]) -> None:
    path.write_text("".join(json.dumps(record(trajectory)) + "\n" for trajectory in trajectories))


def pieces(trajectory: Trajectory) -> list[Sampled]:
    return [event for event in trajectory.events if isinstance(event, Sampled)]


def wait_until(reached: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
