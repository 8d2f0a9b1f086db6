"""Whole episodes against a server behind a recording proxy, while an operator interrupts them."""

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from rollq.events import Sampled
from rollq.export.record import record
from rollq.job import Job
from rollq.trajectory import Trajectory
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.pool import EnginePool
from rollq_worker.environments import domain
from rollq_worker.episode.loop import play
from rollq_worker.episode.token_checks import TokenChecks
from rollq_worker.fakes import FakeJournal
from rollq_worker.tokens.selfcheck.check import checked_renderer
from rollq_worker.users import user_factory
from tests.contract.conftest import Server, VllmServer
from tests.recorder import Recorder, recording

UNFLUSHED = "Weights were updated, but the cache was not flushed"
"""SGLang answers 400 with these words when the new weights are in use, but a turn ran before it
could flush.
"""


@dataclass(frozen=True)
class RecordedEngine:
    """A server behind a proxy, and a client of the proxy."""

    server: Server
    proxy: Recorder
    engine: EngineClient | EnginePool

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
            if call["request"]["rid"].startswith(f"{job.id}/") and call["status"] == 200
        ]

    def check(self, trajectory: Trajectory) -> None:
        """The trajectory is, id for id, what the proxy saw, and holds what every
        trajectory must.
        """
        seen = self.replies(trajectory.job)
        sent = [ids for ids, _ in seen]
        said = [reply["output_ids"] for _, reply in seen]
        for before, reply, after in zip(sent, said, sent[1:], strict=False):
            assert after[: len(before) + len(reply)] == before + reply
        assert trajectory.tokens.tolist() == sent[-1] + said[-1]
        assert [
            t for t, bit in zip(trajectory.tokens, trajectory.mask, strict=True) if bit
        ] == list(chain(*said))
        entries = [
            entry
            for _, reply in seen
            for entry in reply["meta_info"].get("output_token_logprobs", ())
        ]
        recorded = [p for p, bit in zip(trajectory.logprobs, trajectory.mask, strict=True) if bit]
        assert recorded == [entry[0] for entry in entries] or all(
            abs(p - entry[0]) < 1e-6 * max(1.0, abs(p))
            for p, entry in zip(recorded, entries, strict=True)
        )
        spans = [
            version
            for _, reply in seen
            for span in reply["meta_info"].get("weight_versions", ())
            for version in [span["version"]] * (span["end"] - span["start"])
        ]
        assert [v for v in trajectory.versions if v is not None] == spans
        check_invariants(trajectory, self.server)


def check_invariants(trajectory: Trajectory, server: Server) -> None:
    renderer = checked_renderer(
        server.tokenizer, list(domain(trajectory.job.env).open("train", 0, {}).tools)
    )
    checks = TokenChecks(trajectory.job, renderer)
    for event in trajectory.events:
        checks.check_event(event)


@contextmanager
def recorded_engine(server: Server, folder: Path) -> Iterator[RecordedEngine]:
    tokenizer = server.tokenizer
    stops = [tokenizer.added_tokens["<|im_end|>"], *tokenizer.eos_ids]
    with recording(server.url, folder / "calls.jsonl") as proxy:
        engine = EngineClient(proxy.url, stop_ids=stops, vocab_size=tokenizer.vocab_size)
        try:
            yield RecordedEngine(server, proxy, engine)
        finally:
            engine.close()


class Operator:
    """Aborts, pauses and updates weights. All versions are the same weights under new names."""

    def __init__(self, recorded: RecordedEngine) -> None:
        self.engine = recorded.engine
        self.server = recorded.server
        self.versions = [self.server.weight_version()]
        self.model = self.server.model_path()
        self._interruptions = cycle(
            [
                self.abort_all,
                self.pause_in_place,
                self.abort_by_id,
                self.pause_retract,
                self.rename,
                self.pause_abort,
                self.rename_and_abort,
                self.load_and_abort,
            ]
        )

    def new_version(self) -> str:
        self.versions.append(f"w{len(self.versions)}")
        return self.versions[-1]

    def post(self, path: str, **body: Any) -> None:
        answer = self.server.post(path, body)
        assert answer.status_code == 200 or UNFLUSHED in answer.text, f"{path}: {answer.text}"

    def abort_by_id(self) -> None:
        self.engine.abort_running()

    def abort_all(self) -> None:
        self.post("/abort_request", abort_all=True)

    def rename(self) -> None:
        self.post(
            "/update_weight_version", new_version=self.new_version(), abort_all_requests=False
        )

    def rename_and_abort(self) -> None:
        self.post("/update_weight_version", new_version=self.new_version())

    def load(self, **body: Any) -> None:
        self.post(
            "/update_weights_from_disk",
            model_path=self.model,
            weight_version=self.new_version(),
            **body,
        )

    def load_and_abort(self) -> None:
        self.load(abort_all_requests=True)

    def pause_in_place(self) -> None:
        self._paused("in_place", lambda: self.load(flush_cache=False))

    def pause_retract(self) -> None:
        self._paused("retract", self.load)

    def pause_abort(self) -> None:
        self._paused("abort", self.load)

    def _paused(self, mode: str, then: Callable[[], None]) -> None:
        self.post("/pause_generation", mode=mode)
        try:
            then()
        finally:
            self.post("/continue_generation")

    def interrupt(self) -> None:
        """Make the next of all interruptions."""
        next(self._interruptions)()


class VllmOperator(Operator):
    """The same on vLLM, where an abort is a call of its own."""

    def abort_all(self) -> None:
        self.post("/abort_requests")

    def rename(self) -> None:
        self.post("/update_weight_version", new_version=self.new_version())

    def rename_and_abort(self) -> None:
        self.rename()
        self.abort_all()

    def load(self, **body: Any) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": self.model}}
        self.post("/collective_rpc", **reload)
        self.rename()
        if body.get("abort_all_requests"):
            self.abort_all()

    def _paused(self, mode: str, then: Callable[[], None]) -> None:
        form = {"in_place": "mode=keep&clear_cache=false", "retract": "mode=keep"}
        self.post(f"/pause?{form.get(mode, 'mode=abort')}")
        try:
            then()
        finally:
            self.post("/resume")


def operator_of(recorded: RecordedEngine) -> Operator:
    kind = VllmOperator if isinstance(recorded.server, VllmServer) else Operator
    return kind(recorded)


def play_interrupted(
    recorded: RecordedEngine,
    operator: Operator,
    jobs: Sequence[Job],
    at_once: int,
    seconds: float,
) -> list[Trajectory]:
    """Play the jobs while the operator interrupts them, with random pauses of about so many seconds
    between.
    """
    done = threading.Event()
    rng = random.Random(5)

    def operate() -> None:
        while not done.wait(rng.uniform(0.5, 1.5) * seconds):
            operator.interrupt()

    with ThreadPoolExecutor(at_once + 1) as pool:
        operating: Future[None] = pool.submit(operate)
        try:
            trajectories = list(pool.map(recorded.play, jobs))
        finally:
            done.set()
        operating.result(60)
    return trajectories


def write(path: Path, trajectories: Sequence[Trajectory]) -> None:
    path.write_text("".join(json.dumps(record(trajectory)) + "\n" for trajectory in trajectories))


def sampled_pieces(trajectory: Trajectory) -> list[Sampled]:
    return [event for event in trajectory.events if isinstance(event, Sampled)]
