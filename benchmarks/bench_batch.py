"""What do 256 trajectories cost on the way from Redis to a trainer's arrays, and what does one
weigh and cost to write?

Trajectories of 15 turns and 7,000 tokens, in groups of 8 (made_up_episode.py). The way to arrays is
measured whole, as a trainer has it: what Redis gave is decoded, and padded to numpy arrays. Beside
it stand the plain ways: msgpack of lists on the wire, and a list per trajectory for the arrays.
Exit code 1 when a target is missed.

    python benchmarks/bench_batch.py [--json]
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import sys
import time
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import msgpack
import numpy as np
from checks import Check, conclude, parser_for
from made_up_episode import GROUP, RUN, TURNS, episode
from tables import ms, table

from rollq.batch import Batch, Group
from rollq.events import Observed, Sampled
from rollq.export.record import record
from rollq.job import Job
from rollq.ledger.records import sample_of
from rollq.trajectory import Trajectory
from rollq.wire.codec import encode_header, encode_job, read_trajectory
from rollq.wire.events import encode_event
from rollq.wire.shared_prompt import split_prompt

GROUPS, SIZE = 32, 8
ROUNDS = 9


def main(argv: Sequence[str] | None = None) -> int:
    args = parser_for(__doc__).parse_args(argv)
    made = episode()
    blobs = encoded(made)
    lists = msgpack.packb(
        {
            name: record(made)[name]
            for name in ("tokens", "mask", "logprobs", "versions", "messages")
        }
    )
    turns = made.events[1:-1]
    plain_turns = as_msgpack(made)
    batch = batch_of(blobs)
    took = fastest(
        {
            "to_arrays": (lambda: batch_of(blobs).arrays(), 1),
            "decode": (lambda: batch_of(blobs), 1),
            "padded": (batch.arrays, 1),
            "packed": (batch.packed, 1),
            "by_lists": (lambda: by_lists(batch), 1),
            "decode_one": (lambda: buffers(blobs), 20),
            "decode_one_list": (lambda: list_buffers(lists), 20),
            "write": (lambda: [encode_event(event, made.job.id) for event in turns], 20),
            "write_zlib": (lambda: [zlib.compress(turn) for turn in plain_turns], 20),
        }
    )
    size = {
        "bytes": bytes_at_rest(blobs),
        "bytes_alone": sum(map(len, blobs)),
        "bytes_as_lists": len(lists),
    }
    result: dict[str, Any] = {
        "tokens": len(made.tokens),
        **size,
        **{f"{name}_s": took[name] for name in took},
    }
    report(result)
    return conclude(result, checks(result), args.json)


def report(result: dict[str, Any]) -> None:
    work = {
        "from Redis to padded arrays": "to_arrays_s",
        "decoding alone": "decode_s",
        "padded arrays alone": "padded_s",
        "packed arrays alone": "packed_s",
        "padded by lists": "by_lists_s",
    }
    print(f"{GROUPS * SIZE} trajectories of {result['tokens']:,} tokens\n")
    print(table(["work", "CPU ms"], [[name, ms(result[key])] for name, key in work.items()]))
    one = {
        f"bytes in a group of {SIZE}": f"{result['bytes']:,}",
        "bytes alone": f"{result['bytes_alone']:,}",
        "bytes as msgpack lists, without tools": f"{result['bytes_as_lists']:,}",
        "us to buffers": f"{result['decode_one_s'] * 1e6:.0f}",
        "us to buffers, from lists": f"{result['decode_one_list_s'] * 1e6:.0f}",
        "us to write a turn": f"{result['write_s'] / TURNS * 1e6:.0f}",
        "us of one zlib stream of a turn": f"{result['write_zlib_s'] / TURNS * 1e6:.0f}",
    }
    print("\n" + table(["one trajectory", ""], [list(row) for row in one.items()]))


def checks(result: dict[str, Any]) -> list[Check]:
    def over(one: str, other: str) -> float:
        return float(result[one] / result[other])

    return [
        Check("padded arrays, over lists filled with zeros", over("padded_s", "by_lists_s"), 0.2),
        Check(
            "decoding to buffers, over that of lists",
            over("decode_one_s", "decode_one_list_s"),
            1 / 1.5,
        ),
        Check(
            "bytes of a trajectory in a group, over those of lists",
            over("bytes", "bytes_as_lists"),
            0.25,
        ),
        Check("writing a turn, over one zlib stream of it", over("write_s", "write_zlib_s"), 4.0),
    ]


def encoded(of: Trajectory) -> list[bytes]:
    """The trajectory as Redis stores it: the job, then the journal."""
    return [
        encode_job(of.job),
        encode_header(of.header),
        *(encode_event(event, of.job.id) for event in of.events),
    ]


def bytes_at_rest(blobs: Sequence[bytes]) -> int:
    """Bytes of one job of a group: its journal, its share of the job's blob and of the prompt."""
    job, header, prompt, *events = blobs
    shared = split_prompt(prompt)
    assert shared is not None
    reference, _, content = shared
    return sum(map(len, (header, reference, *events))) + (len(job) + len(content)) // SIZE


def decoded(blobs: Sequence[bytes], sample: int, read: dict[bytes, Job]) -> Trajectory:
    """One of a group, as a consumer reads it: `read` has the group's job once it was decoded."""
    job, header, *events = blobs
    return read_trajectory(sample_of(job, f"{RUN}/{GROUP}/{sample}", read), header, events)


def buffers(blobs: Sequence[bytes]) -> object:
    """The buffers that a trainer reads."""
    found = decoded(blobs, 0, {})
    return found.tokens, found.mask, found.logprobs


def list_buffers(blob: bytes) -> object:
    """The values of a batch from plain lists."""
    found = msgpack.unpackb(blob)
    return array("I", found["tokens"]), bytes(found["mask"]), array("f", found["logprobs"])


def as_msgpack(of: Trajectory) -> list[bytes]:
    """The numbers and texts of each turn."""
    pairs = zip(of.events[1:-1:2], of.events[2:-1:2], strict=True)
    return [
        msgpack.packb(
            [
                *(event.ids.tobytes() for event in (sampled, observed)),
                sampled.text,
                observed.message,
            ]
        )
        + msgpack.packb([observed.actions, observed.replies])
        for sampled, observed in pairs
        if isinstance(sampled, Sampled) and isinstance(observed, Observed)
    ]


def batch_of(blobs: Sequence[bytes]) -> Batch:
    """Decodes every trajectory."""
    unheld: Callable[..., None] = lambda *_: None  # noqa: E731
    groups = []
    for seq in range(GROUPS):
        read: dict[bytes, Job] = {}
        members = [decoded(blobs, sample, read) for sample in range(SIZE)]
        groups.append(Group(id=f"g{seq}", seq=seq, size=SIZE, trajectories=members))
    return Batch(step=0, groups=groups, on_ack=unheld, on_skip=unheld, on_reject=unheld)


def by_lists(batch: Batch) -> object:
    """Tokens, mask and logprobs, padded to the longest."""
    columns = [(batch.tokens, "int64"), (batch.mask, "bool"), (batch.logprobs, "float32")]
    length = max(map(len, batch.tokens))
    return [
        np.array([list(values) + [0] * (length - len(values)) for values in column], dtype)
        for column, dtype in columns
    ]


def fastest(calls: Mapping[str, tuple[Callable[[], object], int]]) -> dict[str, float]:
    """CPU seconds of one call of each, the best of several rounds in turn. With each, how often a
    round calls it.
    """
    best = dict.fromkeys(calls, inf)
    for _ in range(ROUNDS):
        for name, (call, times) in calls.items():
            began = time.process_time()
            for _ in range(times):
                call()
            best[name] = min(best[name], (time.process_time() - began) / times)
    return best


if __name__ == "__main__":
    sys.exit(main())
