"""Measure the shape of a real engine, and how well the model of an engine predicts it.

    python benchmarks/engine_shape.py http://127.0.0.1:30000 --out shape.toml
    python benchmarks/engine_shape.py http://127.0.0.1:30001 --shape shape.toml --only full-memory
    python benchmarks/engine_shape.py http://127.0.0.1:30000 --pid 4711 --rounds-file rounds.json

Some bursts of requests fit the constants of `EngineShape`; the others are predicted with them. The engine is flushed
before each burst, and should have no other work. Times are medians over the rounds, from the first request sent to each
reply. What a request costs outside the steps (HTTP, tokenizer process) lands in the constants.

On a machine with other work `--pid` measures in CPU seconds of the engine's scheduler process, which spins while it
waits: for an engine that computes on the CPU these are its seconds on a quiet machine.
"""

import argparse
import json
import random
import statistics
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rollq_worker.simulation.engine_model import EngineModel, EngineShape, Request
from rollq_worker.simulation.engine_shapes import read_shape

CONSTANTS = ("step_s", "prefill_token_s", "running_s", "kv_token_s", "attended_pair_s")
FIRST_GUESS = {"step_s": 0.01, "prefill_token_s": 1e-5, "running_s": 1e-4, "kv_token_s": 1e-8, "attended_pair_s": 1e-10}
FIRST_ID, LAST_ID = 1000, 20_000
"""Prompts are random ids between them, so that nothing is cached by chance."""
SWEEPS = 5000
"""Sweeps of the fit over all constants."""


@dataclass(frozen=True)
class Sent:
    """One request of a burst."""

    own: int
    """Tokens of the prompt that no other request has."""
    output: int
    shared: int = 0
    """Tokens before them, which all requests of the burst share."""
    at: float = 0.0


@dataclass(frozen=True)
class Burst:
    name: str
    requests: tuple[Sent, ...]
    fits: bool = False
    """Whether it fits the constants; else it is predicted."""
    warm: bool = False
    """Whether the shared prefix is cached before."""


@dataclass(frozen=True)
class Times:
    mean: float
    """Mean seconds from a request to its reply."""
    last: float
    """Seconds to the last reply."""
    cached: int
    retractions: int


def bursts() -> list[Burst]:
    rng = random.Random(1)
    found = [Burst(f"decode, {n} at once", (Sent(64, 32),) * n, fits=n in (1, 8, 32)) for n in (1, 2, 4, 8, 16, 32)]
    found += [
        Burst(f"prompt of {n}", (Sent(n, 1),), fits=n in (500, 2000, 8000)) for n in (500, 1000, 2000, 4000, 8000)
    ]
    found.append(Burst("decode, 8 with 3000 before", (Sent(3000, 32),) * 8, fits=True))
    found.append(Burst("decode, 16 with 1500 before", (Sent(1500, 32),) * 16))
    found.append(Burst("16 siblings, 2000 shared, cold", (Sent(100, 16, shared=2000),) * 16))
    found.append(Burst("16 siblings, 2000 shared, warm", (Sent(100, 16, shared=2000),) * 16, warm=True))
    arrivals = sorted(rng.uniform(0, 4) for _ in range(30))
    found.append(
        Burst("30 arriving in 4 s", tuple(Sent(rng.randint(100, 2000), rng.randint(8, 40), at=at) for at in arrivals))
    )
    return found


def full_memory(tokens: int) -> list[Burst]:
    """Bursts that do not fit into a memory of `tokens` at once."""
    part = tokens // 12
    return [
        Burst("12 that fill memory", (Sent(part // 2, part),) * 12),
        Burst("12 that fill it twice", (Sent(part, part),) * 12),
    ]


class Server:
    def __init__(self, url: str, pid: int | None) -> None:
        self.url = url.rstrip("/")
        self.pid = pid
        self.info = json.loads(self.call("/server_info", None))

    def call(self, path: str, body: Any) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=300) as answer:
            return answer.read()

    def generate(self, ids: list[int], sent: Sent) -> dict[str, Any]:
        # Not ignore_eos, for which SGLang reserves memory for all tokens and never retracts.
        sampling = {"max_new_tokens": sent.output, "min_new_tokens": sent.output, "temperature": 0.0}
        meta = json.loads(self.call("/generate", {"input_ids": ids, "sampling_params": sampling}))["meta_info"]
        assert meta["completion_tokens"] == sent.output, meta
        return meta

    def now(self) -> float:
        if self.pid is None:
            return time.monotonic()
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def play(self, burst: Burst, rng: random.Random) -> Times:
        while True:
            try:
                self.call("/flush_cache", {})
                break
            except urllib.error.HTTPError:  # the last burst is not quite over
                time.sleep(0.05)
        shared = _ids(burst.requests[0].shared, rng)
        if burst.warm:
            self.generate(shared, Sent(0, 1))
        prompts = [shared + _ids(sent.own, rng) for sent in burst.requests]
        began = self.now()

        def one(number: int) -> tuple[float, float, dict[str, Any]]:
            sent = burst.requests[number]
            while (start := self.now()) < began + sent.at:
                time.sleep(0.002)
            meta = self.generate(prompts[number], sent)
            return start, self.now(), meta

        with ThreadPoolExecutor(len(prompts)) as pool:
            ends = list(pool.map(one, range(len(prompts))))
        return Times(
            mean=statistics.mean(end - start for start, end, _ in ends),
            last=max(end for _, end, _ in ends) - began,
            cached=sum(meta["cached_tokens"] for *_, meta in ends),
            retractions=sum(meta["num_retractions"] for *_, meta in ends),
        )


def _ids(count: int, rng: random.Random) -> list[int]:
    return rng.choices(range(FIRST_ID, LAST_ID), k=count)


def predicted(burst: Burst, shape: EngineShape) -> Times:
    model, ends, at = EngineModel(shape), [], 0.0
    shared = (("shared", burst.requests[0].shared),) if burst.requests[0].shared else ()
    if burst.warm:
        model.submit(Request("warm", shared, "warm said", 1), 0.0)
        ends, at = _drain(model), 100.0
    for number, sent in enumerate(burst.requests):
        ends += model.advance(at + sent.at)
        rid = f"r{number}"
        model.submit(Request(rid, (*shared, (rid, sent.own)), f"{rid} said", sent.output), at + sent.at)
    ends = [end for end in ends + _drain(model) if end.rid != "warm"]
    sent_at = {f"r{number}": at + sent.at for number, sent in enumerate(burst.requests)}
    return Times(
        mean=statistics.mean(end.at - sent_at[end.rid] for end in ends),
        last=max(end.at for end in ends) - at,
        cached=sum(end.cached_tokens for end in ends),
        retractions=sum(end.retractions for end in ends),
    )


def _drain(model: EngineModel) -> list[Any]:
    ends = []
    while (at := model.next_event()) < float("inf"):
        ends += model.advance(at)
    return ends


def fitted(measured: dict[Burst, Times], shape: EngineShape) -> EngineShape:
    """The constants for which the times of the bursts are closest, relative to each. None is negative."""
    for _ in range(3):  # the steps that a burst takes depend a little on the constants
        rows, targets = [], []
        for burst, times in measured.items():
            base = predicted(burst, shape).mean
            row = []
            for name in CONSTANTS:
                change = max(getattr(shape, name), FIRST_GUESS[name]) * 0.01
                more = predicted(burst, replace(shape, **{name: getattr(shape, name) + change})).mean
                row.append((more - base) / change / times.mean)
            rows.append(row)
            constants = [getattr(shape, name) for name in CONSTANTS]
            rest = base / times.mean - sum(a * b for a, b in zip(row, constants, strict=True))
            targets.append(1.0 - rest)
        found = _least_squares(rows, targets)
        shape = replace(shape, **dict(zip(CONSTANTS, [max(found[0], 1e-6), *found[1:]], strict=True)))
    return shape


def _least_squares(rows: list[list[float]], targets: list[float]) -> list[float]:
    """Least squares without negative values, one unknown at a time."""
    count = len(rows[0])
    found = [0.0] * count
    rest = list(targets)
    for _ in range(SWEEPS):
        for index in range(count):
            column = [row[index] for row in rows]
            square = sum(value * value for value in column)
            if not square:
                continue
            gain = sum(value * left for value, left in zip(column, rest, strict=True)) / square
            new = max(0.0, found[index] + gain)
            rest = [left - value * (new - found[index]) for value, left in zip(column, rest, strict=True)]
            found[index] = new
    return found


def middle(all_times: list[Times]) -> Times:
    return Times(
        mean=statistics.median(times.mean for times in all_times),
        last=statistics.median(times.last for times in all_times),
        cached=round(statistics.median(times.cached for times in all_times)),
        retractions=round(statistics.median(times.retractions for times in all_times)),
    )


def write_shape(file: Path, shape: EngineShape) -> None:
    lines = [f"{name} = {str(value).lower()}" for name, value in asdict(shape).items()]
    file.write_text("\n".join(["[engines.shape]", *lines]) + "\n")


def report(measured: dict[Burst, Times], shape: EngineShape) -> None:
    print("\n| burst | | mean s, measured | model | error | last s, measured | model | error | cached | retracted |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    errors = []
    for burst, real in measured.items():
        guess = predicted(burst, shape)
        off, off_last = guess.mean / real.mean - 1, guess.last / real.last - 1
        if not burst.fits:
            errors += [abs(off), abs(off_last)]
        kind = "fit" if burst.fits else "predicted"
        print(
            f"| {burst.name} | {kind} | {real.mean:.3f} | {guess.mean:.3f} | {off:+.0%} |"
            f" {real.last:.3f} | {guess.last:.3f} | {off_last:+.0%} |"
            f" {real.cached}, {guess.cached} | {real.retractions}, {guess.retractions} |"
        )
    if errors:
        print(f"\npredicted bursts: median error {statistics.median(errors):.0%}, worst {max(errors):.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", type=Path, help="predict with this file, and fit nothing")
    parser.add_argument("--out", type=Path, help="write the shape into this file")
    parser.add_argument("--only", choices=("full-memory",), help="the bursts that do not fit into memory")
    parser.add_argument("--pid", type=int, help="the engine's scheduler process, whose CPU time is the clock")
    parser.add_argument("--rounds-file", type=Path, help="add the rounds to those in this file, and report on all")
    args = parser.parse_args()
    server = Server(args.url, args.pid)
    info, load = server.info, json.loads(server.call("/v1/loads", None))["loads"][0]
    held = {
        "kv_tokens": info["max_total_num_tokens"],
        "max_running": load["max_running_requests"],  # /server_info has what was asked for, which may be null
        "chunk_tokens": info["chunked_prefill_size"],
    }
    print({name: info.get(name) for name in ("version", "schedule_policy", "enable_mixed_chunk", "device")} | held)
    if held["max_running"] is None:
        sys.exit("the engine has no limit on requests that run at once; start the replay engine with --shape")
    if (held["chunk_tokens"] or 0) < 1:
        sys.exit("the engine does not prefill in chunks; start it with --chunked-prefill-size")
    plan = full_memory(held["kv_tokens"]) if args.only else bursts()
    rng = random.Random(time.time())
    server.play(Burst("warm up", (Sent(200, 8),) * 2), rng)
    kept = args.rounds_file
    rounds = json.loads(kept.read_text()) if kept and kept.exists() else []
    for _ in range(args.rounds):
        rounds.append({burst.name: asdict(server.play(burst, rng)) for burst in plan})
        if kept:
            kept.write_text(json.dumps(rounds))
    measured = {burst: middle([Times(**one[burst.name]) for one in rounds]) for burst in plan}
    if args.shape:
        shape = replace(read_shape(args.shape), **held)
    else:
        shape = fitted({b: t for b, t in measured.items() if b.fits}, EngineShape(**FIRST_GUESS, **held))
    print({field.name: getattr(shape, field.name) for field in fields(shape)})
    report(measured, shape)
    if args.out:
        write_shape(args.out, shape)


if __name__ == "__main__":
    main()
