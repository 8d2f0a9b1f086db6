"""Engines kept busy: the worker's placement against random routing and routing by group, in a simulation.

The engines are `EngineModel`s (batching, KV capacity, prefix cache, chunked prefill) on a simulated clock. What decides
is the worker's own `EnginePlacement`, one for each simulated worker process, which sees what a real one sees: its own
episodes. The first third of the time is not counted.

    .venv/bin/python benchmarks/bench_engines.py [--seconds 600] [--only WORD] [--json FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rollq_worker.engine.scheduling.placement import EnginePlacement
from rollq_worker.simulation.engine_model import EngineModel, EngineShape, Request

SHAPE = EngineShape(
    step_s=0.006,
    prefill_token_s=4e-5,
    running_s=2e-5,
    kv_token_s=1.8e-8,
    kv_tokens=1_000_000,
    max_running=256,
    chunk_tokens=8192,
)
"""About a 7B model on one H100: weights read in 5 ms a step, 57 kB of KV cache a token at 3.3 TB/s."""


@dataclass(frozen=True)
class Fleet:
    name: str
    shape: EngineShape = SHAPE
    engines: int = 4
    workers: int = 4
    concurrency: int = 64
    """Episodes of each worker process."""
    group: int = 8
    policy_tokens: int = 4000
    """System prompt and tools, shared by all episodes."""
    group_tokens: int = 300
    """The first message, shared by a group."""
    turns: int = 12
    sampled: int = 120
    observed: int = 180
    step_s: float = 1.0
    slow: float = 1.0
    """How many times as long the first engine takes."""


@dataclass
class Result:
    fleet: str
    way: str
    goodput: float
    """Sampled tokens a second, of finished turns."""
    turn_p50: float
    turn_p99: float
    hit: float
    """Share of the prompts' tokens that were found in a cache."""
    retractions: float
    """For each thousand turns."""
    rollout_p50: float
    rollout_p99: float


@dataclass(eq=False)
class Episode:
    id: str
    group: str
    worker: int
    dice: random.Random
    turns: int
    chain: list[tuple[Any, int]]
    turn: int = 0
    began: float = 0.0
    claimed: float = 0.0
    output: int = 0


class Way:
    """How a worker process chooses engines."""

    name = ""

    def __init__(self, urls: list[str], dice: random.Random) -> None:
        self.urls, self.dice = urls, dice

    def enter(self, episode: Episode) -> str:
        raise NotImplementedError

    def leave(self, episode: Episode) -> None: ...


class Random(Way):
    name = "random engine"

    def enter(self, episode: Episode) -> str:
        return self.dice.choice(self.urls)


class ByGroup(Way):
    name = "engine of the group"

    def enter(self, episode: Episode) -> str:
        def weight(url: str) -> bytes:
            return hashlib.blake2b(f"{url} {episode.group}".encode(), digest_size=8).digest()

        return max(self.urls, key=weight)


class Bounded(Way):
    name = "engine of the group, bounded loads"

    def __init__(self, urls: list[str], dice: random.Random) -> None:
        super().__init__(urls, dice)
        self.placement = EnginePlacement()

    def enter(self, episode: Episode) -> str:
        return self.placement.enter(episode.id, episode.group, self.urls)

    def leave(self, episode: Episode) -> None:
        self.placement.leave(episode.id)


WAYS: tuple[type[Way], ...] = (Random, ByGroup, Bounded)


class Simulation:
    """One fleet under one way of choosing engines."""

    def __init__(self, fleet: Fleet, way: type[Way], seed: int, seconds: float) -> None:
        self.fleet, self.way, self.seconds, self.warm = fleet, way, seconds, seconds / 3
        dice = random.Random(seed)
        self.urls = [f"http://engine-{number}" for number in range(fleet.engines)]
        self.engines = {url: EngineModel(fleet.shape) for url in self.urls}
        self.engines[self.urls[0]] = EngineModel(_slower(fleet.shape, fleet.slow))
        self.workers = [way(self.urls, random.Random(dice.random())) for _ in range(fleet.workers)]
        self.dice, self.seed = dice, seed
        self.jobs = itertools.count()
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.due = dict.fromkeys(self.urls, math.inf)
        self.flying: dict[str, Episode] = {}
        self.turn_s: list[float] = []
        self.rollout_s: list[float] = []
        self.tokens = self.prompt = self.cached = self.retractions = 0

    def run(self) -> Result:
        for worker in range(self.fleet.workers):
            for _ in range(self.fleet.concurrency):
                self.at(self.dice.uniform(0, 2), lambda worker=worker: self.claim(worker))
        while self.events[0][0] < self.seconds:
            self.now, _, act = heapq.heappop(self.events)
            act()
        return self.result()

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), act))

    def claim(self, worker: int) -> None:
        number = next(self.jobs)
        group = number // self.fleet.group
        dice = random.Random(self.seed * 1_000_003 + number)
        chain = [("policy", self.fleet.policy_tokens), (f"group {group}", self.fleet.group_tokens)]
        turns = max(2, round(dice.gauss(self.fleet.turns, self.fleet.turns / 3)))
        episode = Episode(f"run/g{group}/{number}", f"run/g{group}", worker, dice, turns, chain, claimed=self.now)
        self.begin(episode)

    def begin(self, episode: Episode) -> None:
        """The next turn."""
        episode.began = self.now
        episode.output = max(1, round(self.fleet.sampled * episode.dice.lognormvariate(-0.32, 0.8)))
        url = self.workers[episode.worker].enter(episode)
        rid = f"{episode.id} {episode.turn}"
        self.flying[rid] = episode
        request = Request(rid, tuple(episode.chain), (episode.id, episode.turn), episode.output)
        self.engines[url].submit(request, self.now)
        self.look(url)

    def look(self, url: str) -> None:
        when = self.engines[url].next_event()
        if when < math.inf and when != self.due[url]:
            self.due[url] = when
            self.at(when, lambda: self.advance(url, when))

    def advance(self, url: str, when: float) -> None:
        if when != self.due[url]:
            return
        self.due[url] = math.inf
        for finished in self.engines[url].advance(self.now):
            self.finish(self.flying.pop(finished.rid), finished)
        self.look(url)

    def finish(self, episode: Episode, finished: Any) -> None:
        prompt = sum(tokens for _, tokens in episode.chain)
        if self.now > self.warm:
            self.turn_s.append(self.now - episode.began)
            self.tokens += episode.output
            self.prompt += prompt
            self.cached += finished.cached_tokens
            self.retractions += finished.retractions
        episode.chain.append(((episode.id, episode.turn), episode.output))
        episode.turn += 1
        if episode.turn == episode.turns:
            self.workers[episode.worker].leave(episode)
            if self.now > self.warm:
                self.rollout_s.append(self.now - episode.claimed)
            self.claim(episode.worker)
            return
        episode.chain.append(((episode.id, episode.turn, "observed"), self.fleet.observed))
        self.at(self.now + self.fleet.step_s * episode.dice.lognormvariate(-0.5, 1.0), lambda: self.begin(episode))

    def result(self) -> Result:
        span = self.seconds - self.warm
        return Result(
            fleet=self.fleet.name,
            way=self.way.name,
            goodput=self.tokens / span,
            turn_p50=statistics.median(self.turn_s),
            turn_p99=statistics.quantiles(self.turn_s, n=100)[-1],
            hit=self.cached / max(1, self.prompt),
            retractions=1000 * self.retractions / len(self.turn_s),
            rollout_p50=statistics.median(self.rollout_s or [0.0]),
            rollout_p99=statistics.quantiles(self.rollout_s or [0.0, 0.0], n=100)[-1],
        )


def _slower(shape: EngineShape, times: float) -> EngineShape:
    return replace(
        shape,
        step_s=shape.step_s * times,
        prefill_token_s=shape.prefill_token_s * times,
        running_s=shape.running_s * times,
        kv_token_s=shape.kv_token_s * times,
    )


SCARCE = replace(SHAPE, kv_tokens=200_000)
FLEETS = [
    Fleet("1 engine, KV plenty", engines=1, workers=2),
    Fleet("1 engine, KV scarce", SCARCE, engines=1, workers=2),
    Fleet("1 engine, KV scarce, 384 episodes", SCARCE, engines=1, workers=6),
    Fleet("1 engine, KV scarce, steps of 15 s", SCARCE, engines=1, workers=4, step_s=15.0),
    Fleet("4 engines, KV plenty"),
    Fleet("4 engines, KV scarce", SCARCE),
    Fleet("4 engines, KV scarce, one 3x slower", SCARCE, slow=3.0),
    Fleet("4 engines, KV plenty, one 3x slower", slow=3.0),
    Fleet("16 engines, KV plenty", engines=16, workers=16),
    Fleet("16 engines, KV scarce", SCARCE, engines=16, workers=16),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    print(f"{'fleet':38}{'way':34}{'tokens/s':>9}{'p50 s':>7}{'p99 s':>8}{'hit':>6}{'rollout p50':>12}{'p99':>7}")
    for fleet in FLEETS:
        if arguments.only not in fleet.name:
            continue
        for way in WAYS:
            if arguments.ways not in way.name:
                continue
            cpu = time.process_time()
            one = Simulation(fleet, way, arguments.seed, arguments.seconds).run()
            results.append(one)
            print(
                f"{one.fleet:38}{one.way:34}{one.goodput:9.0f}{one.turn_p50:7.2f}{one.turn_p99:8.2f}{one.hit:6.2f}"
                f"{one.rollout_p50:12.1f}{one.rollout_p99:7.1f}  ({time.process_time() - cpu:.0f} s)",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
