"""What it costs to make numpy arrays of a training step's batch.

256 trajectories of 7,000 tokens, in groups of 8, as a client decodes them (bench_codec's episode). Beside the arrays,
padded and packed, stand the decoding itself and the plain way to arrays of the same content: a list per trajectory,
filled up with zeros, and `numpy.array` of the lists. Exit code 1 when the padded arrays cost more than a fifth of the
plain way, or more than the decoding.

    python benchmarks/bench_arrays.py [--json]
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from bench_codec import decoded, encoded, episode, fastest
from tables import ms, table

from rollq.batch import Batch, Group

GROUPS, SIZE = 32, 8
MAX_OF_LISTS = 0.2
"""CPU of the padded arrays, over that of the plain way."""
MAX_OF_DECODING = 1.0


def batch_of(blobs: Sequence[bytes]) -> Batch:
    """Decodes every trajectory."""
    unheld: Callable[..., None] = lambda *_: None  # noqa: E731
    groups = [
        Group(id=f"g{seq}", seq=seq, size=SIZE, trajectories=[decoded(blobs) for _ in range(SIZE)])
        for seq in range(GROUPS)
    ]
    return Batch(step=0, groups=groups, on_ack=unheld, on_skip=unheld, on_reject=unheld)


def by_lists(batch: Batch) -> object:
    """Tokens, mask and logprobs, padded to the longest."""
    columns = [(batch.tokens, "int64"), (batch.mask, "bool"), (batch.logprobs, "float32")]
    length = max(map(len, batch.tokens))
    return [
        np.array([list(values) + [0] * (length - len(values)) for values in column], dtype) for column, dtype in columns
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args(argv)
    blobs = encoded(episode())
    batch = batch_of(blobs)
    found = fastest(
        {
            "padded": (batch.arrays, 1),
            "packed": (batch.packed, 1),
            "tree": (batch.prefix_tree, 1),
            "lists": (partial(by_lists, batch), 1),
            "decode": (partial(batch_of, blobs), 1),
        }
    )
    ratios = {"of_lists": found["padded"] / found["lists"], "of_decoding": found["padded"] / found["decode"]}
    tokens = sum(map(len, batch.tokens))
    print(f"{len(batch.trajectories)} trajectories, {tokens:,} tokens\n")
    print(table(["work", "CPU ms"], [[name, ms(seconds)] for name, seconds in found.items()]))
    print(
        f"\nPadded arrays cost {ratios['of_lists']:.2f} of the lists, and {ratios['of_decoding']:.2f} of the decoding."
    )
    if args.json:
        print(json.dumps({"tokens": tokens, **{f"{name}_s": value for name, value in found.items()}, **ratios}))
    return int(ratios["of_lists"] > MAX_OF_LISTS or ratios["of_decoding"] > MAX_OF_DECODING)


if __name__ == "__main__":
    sys.exit(main())
