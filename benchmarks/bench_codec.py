"""What a trajectory costs on the wire, and on the way from the wire to a trainer's buffers.

One episode of the shape that airline tasks of tau-bench have: 15 turns, 7,000 tokens, 18 kB of system prompt and tools,
random words and ids with the frequencies of a language. Its first prompt is stored once for a group of 8. Beside it the
same as plain msgpack lists (tokens, mask, logprobs, versions, messages). Exit code 1 when it takes more than a quarter
of the lists' bytes, when reading the lists costs less than 1.5 times as much as its buffers, or when writing a turn
costs more than four zlib streams of the turn.

    python benchmarks/bench_codec.py [--json]
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import argparse
import json
import random
import sys
import time
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import msgpack
from tables import table

from rollq.export.record import record
from rollq.job import Job
from rollq.trajectory import (
    Closed,
    Event,
    Finish,
    Header,
    Observed,
    Prompt,
    Sampled,
    Stop,
    Trajectory,
    VersionSpan,
)
from rollq.wire.codec import decode_job, encode_event, encode_header, encode_job, read_trajectory
from rollq.wire.shared_prompt import split_prompt

TURNS = 15
PROMPT, SAMPLED, BRIDGE = 4200, 62, 125
"""Number of tokens of the first prompt, and of each turn's sampled part and bridge."""
GROUP = 8
"""Samples that share a prompt."""
MAX_OF_LISTS = 0.25
"""Bytes in a group, over those of the lists."""
MIN_GAIN = 1.5
MAX_OF_ZLIB = 4.0
"""CPU of writing a turn, over that of one zlib stream of its bytes."""


class RandomText:
    """Random words with the frequencies of a language."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgk"
        self.words = ["".join(self.random.choices(letters, k=self.random.randint(2, 9))) for _ in range(4000)]
        self.weights = [1 / rank for rank in range(1, len(self.words) + 1)]
        self.vocabulary = self.random.sample(range(151_000), len(self.words))

    def text(self, length: int) -> str:
        return " ".join(self.random.choices(self.words, self.weights, k=length // 4))[:length]

    def ids(self, count: int) -> array[int]:
        return array("I", self.random.choices(self.vocabulary, self.weights, k=count))

    def result(self) -> str:
        fields = {f"{word}_id": f"#{self.random.randrange(10**8):08}" for word in self.words[:8]}
        return json.dumps({**fields, "note": self.text(300)})


def episode() -> Trajectory:
    """A trajectory of random words, the same each time."""
    writer = RandomText()
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "description": writer.text(850)}} for n in range(14)
    ]
    messages = [{"role": "system", "content": writer.text(6000)}, {"role": "user", "content": writer.text(100)}]
    events: list[Event] = [Prompt(ids=writer.ids(PROMPT), messages=messages, tools=tools, at=1.0)]
    for turn in range(TURNS):
        logprobs = array("f", [-writer.random.expovariate(3) for _ in range(SAMPLED)])
        span = VersionSpan("12", 0, SAMPLED)
        said = writer.text(300)
        arguments = {"id": f"#{turn:08}", "reason": writer.text(60)}
        events += [
            Sampled(
                turn=turn,
                ids=writer.ids(SAMPLED),
                logprobs=logprobs,
                versions=[span],
                finish=Finish.STOP,
                text=said,
                at=1.0,
            ),
            Observed(
                turn=turn,
                message={"role": "assistant", "content": said},
                actions=[{"name": "tool_3", "arguments": arguments}],
                replies=[{"role": "tool", "tool_call_id": f"call_{turn}", "content": writer.result()}],
                ids=writer.ids(BRIDGE),
                at=1.0,
            ),
        ]
    events.append(Closed(stop=Stop.DONE, reward=1.0, info={"reward": 1.0}, at=2.0))
    job = Job(run="retail-grpo", group="tau2-retail.train.17", env="tau2:retail", task=17, size=8)
    return Trajectory(job=job, header=Header(attempt=1, worker="rollq@host-1", at=1.0), events=events)


def encoded(of: Trajectory) -> list[bytes]:
    """The trajectory as Redis stores it: the job, then the journal."""
    return [encode_job(of.job), encode_header(of.header), *(encode_event(event, of.job.id) for event in of.events)]


def bytes_at_rest(blobs: Sequence[bytes]) -> int:
    """Of one job of a group: its journal, and its share of the job's blob and of the prompt."""
    job, header, prompt, *events = blobs
    shared = split_prompt(prompt)
    assert shared is not None
    reference, _, content = shared
    return sum(map(len, (header, reference, *events))) + (len(job) + len(content)) // GROUP


def decoded(blobs: Sequence[bytes]) -> Trajectory:
    job, header, *events = blobs
    return read_trajectory(decode_job(job), header, events)


def buffers(blobs: Sequence[bytes]) -> object:
    """The buffers that a trainer reads."""
    found = decoded(blobs)
    return found.tokens, found.mask, found.logprobs


def lists(blob: bytes) -> object:
    """The same values from plain lists."""
    found = msgpack.unpackb(blob)
    return array("I", found["tokens"]), bytes(found["mask"]), array("f", found["logprobs"])


def as_msgpack(of: Trajectory) -> list[bytes]:
    """The numbers and texts of each turn."""
    pairs = zip(of.events[1:-1:2], of.events[2:-1:2], strict=True)
    return [
        msgpack.packb([*(event.ids.tobytes() for event in (sampled, observed)), sampled.text, observed.message])
        + msgpack.packb([observed.actions, observed.replies])
        for sampled, observed in pairs
        if isinstance(sampled, Sampled) and isinstance(observed, Observed)
    ]


def fastest(calls: Mapping[str, tuple[Callable[[], object], int]]) -> dict[str, float]:
    """CPU seconds of one call of each, the best of several rounds in turn. With each, how often a round calls it."""
    best = dict.fromkeys(calls, inf)
    for _ in range(9):
        for name, (call, times) in calls.items():
            began = time.process_time()
            for _ in range(times):
                call()
            best[name] = min(best[name], (time.process_time() - began) / times)
    return best


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args(argv)
    made = episode()
    plain = {name: record(made)[name] for name in ("tokens", "mask", "logprobs", "versions", "messages")}
    blobs, other = encoded(made), msgpack.packb(plain)
    turns, plain_turns = made.events[1:-1], as_msgpack(made)
    result: dict[str, Any] = {
        "tokens": len(made.tokens),
        "bytes": bytes_at_rest(blobs),
        "bytes_alone": sum(map(len, blobs)),
        "list_bytes": len(other),
    }
    result |= fastest(
        {
            "turns_s": (lambda: [encode_event(event, made.job.id) for event in turns], 20),
            "zlib_turns_s": (lambda: [zlib.compress(turn) for turn in plain_turns], 20),
            "encode_s": (lambda: encoded(made), 20),
            "decode_s": (lambda: buffers(blobs), 50),
            "messages_s": (lambda: decoded(blobs).messages, 50),
            "list_encode_s": (lambda: msgpack.packb(plain), 50),
            "list_decode_s": (lambda: lists(other), 50),
        }
    )
    report(result)
    if args.json:
        print(json.dumps(result))
    small = result["bytes"] <= MAX_OF_LISTS * result["list_bytes"]
    fast = result["turns_s"] <= MAX_OF_ZLIB * result["zlib_turns_s"]
    return 0 if small and fast and result["list_decode_s"] >= MIN_GAIN * result["decode_s"] else 1


def report(result: dict[str, Any]) -> None:
    def micro(seconds: float) -> str:
        return f"{seconds * 1e6:.0f}"

    rows = [
        [
            "rollq, schema 2",
            f"{result['bytes']:,}",
            f"{result['bytes_alone']:,}",
            *(micro(result[name]) for name in ("encode_s", "decode_s", "messages_s")),
        ],
        [
            "msgpack lists, no tools",
            "",
            f"{result['list_bytes']:,}",
            micro(result["list_encode_s"]),
            micro(result["list_decode_s"]),
            "",
        ],
    ]
    print(f"one trajectory of {result['tokens']:,} tokens and {TURNS} turns; CPU in microseconds")
    turn, stream = (micro(result[name] / TURNS) for name in ("turns_s", "zlib_turns_s"))
    print(f"writing a turn takes {turn}, one zlib stream of it {stream}")
    heads = [f"bytes in a group of {GROUP}", "bytes alone", "encode", "decode to buffers", "decode to messages"]
    print(table(["", *heads], rows))


if __name__ == "__main__":
    sys.exit(main())
