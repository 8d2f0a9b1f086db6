"""A trajectory as flat rows for a table: one row per segment, which is what a trainer trains on.

Pure: `parquet.py` writes and reads the rows.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollq.export.record import as_json, facts
from rollq.export.validation import length_faults
from rollq.trajectory import Segment, Trajectory

OPTIONAL = ("adapter", "template_kwargs", "extras", "conversations", "steps")
"""Facts that only some trajectories have."""
AS_JSON = (
    "labels",
    "sampling",
    "messages",
    "info",
    "template_kwargs",
    "extras",
    "conversations",
    "steps",
)
"""Facts that a column holds as a text of JSON."""
PER_TOKEN = ("response_ids", "mask", "logprobs", "versions")
"""Columns with a list of one entry per token of the response."""
PER_ROW = frozenset({"segment", "prompt_ids", *PER_TOKEN})
"""Columns in which the rows of a trajectory differ."""


def rows(trajectory: Trajectory, digest: int) -> list[dict[str, Any]]:
    """The trajectory's rows, in order. One in which nothing was sampled has one row, and an empty
    response.

    Raises ValueError when a text cannot be JSON, ContractError when one in Redis cannot be read.
    """
    known = facts(trajectory)
    if "conversations" in known:  # a trace without sampled tokens has no row
        known["conversations"] = [each for each in known["conversations"] if each["turns"]]
    known |= {name: as_json(known[name]) for name in AS_JSON if name in known} | {"digest": digest}
    segments = trajectory.segments() or [Segment(prompt_ids=trajectory.tokens, events=())]
    return [
        known
        | {
            "segment": place,
            "segments": len(segments),
            "prompt_ids": segment.prompt_ids.tolist(),
            "response_ids": segment.response_ids.tolist(),
            "mask": [token == 1 for token in segment.mask],
            "logprobs": segment.logprobs.tolist(),
            "versions": segment.versions,
        }
        for place, segment in enumerate(segments)
    ]


def record_of(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The rows of one job as a record, and what is wrong with them as rows. With faults the record
    is empty.
    """
    wrong = [fault for place, row in enumerate(rows) for fault in _row_faults(place, row, rows)]
    if wrong:
        return {}, wrong
    record = {name: value for name, value in rows[0].items() if name not in PER_ROW}
    for name in OPTIONAL:
        if record.get(name) is None:
            record.pop(name, None)
    for name in filter(record.__contains__, AS_JSON):
        try:
            record[name] = json.loads(record[name])
        except (TypeError, ValueError, RecursionError) as e:
            wrong.append(f"{name} is no JSON: {e}")
    record |= {"tokens": [], "mask": [], "logprobs": [], "versions": [], "traces": []}
    for row in rows:
        prompt = row["prompt_ids"]
        record["tokens"] += [*prompt, *row["response_ids"]]
        record["mask"] += [
            *([0] * len(prompt)),
            *(int(token) if token is not None else None for token in row["mask"]),
        ]
        record["logprobs"] += [*([0.0] * len(prompt)), *row["logprobs"]]
        record["versions"] += [*([None] * len(prompt)), *row["versions"]]
        record["traces"].append(len(prompt) + len(row["response_ids"]))
    return ({}, wrong) if wrong else (record, [])


def _row_faults(
    place: int, row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    at = f"segment {place}: " if len(rows) > 1 else ""
    if missing := [name for name in ("prompt_ids", *PER_TOKEN) if row[name] is None]:
        yield f"{at}{missing[0]} is null"
        return
    for fault in length_faults({name: row[name] for name in PER_TOKEN}):
        yield at + fault
    if (row["segment"], row["segments"]) != (place, len(rows)):
        yield (
            f"{at}it is segment {row['segment']} of {row['segments']}, and the file has "
            f"{len(rows)} in a row"
        )
    if not row["prompt_ids"]:
        yield f"{at}its prompt is empty"
    if row["mask"] and not row["mask"][0]:
        yield f"{at}its response does not begin with a sampled token"
    if other := [name for name in row if name not in PER_ROW and row[name] != rows[0][name]]:
        yield f"{at}{other[0]} is not that of segment 0"
