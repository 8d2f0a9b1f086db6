"""The result of a run: whether the consumer's file, the ledger and the engine's recording agree.

Nothing is lost and nothing comes twice. The replay engine plays perfectly here, so every delivered
reward is 1: an infrastructure failure that became a reward of 0 would show. Every sampled token was
sampled by the engine behind exactly the tokens that precede it.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.engine_proxy import EngineProxy, prompt_digest
from tests.chaos.fault_run import FaultRun


@dataclass(slots=True, kw_only=True)
class Result:
    """One row of the table."""

    row: str
    seed: int
    faults: int = 0
    jobs: int = 0
    done: int = 0
    dead: int = 0
    delivered: int = 0
    lost: int = 0
    duplicated: int = 0
    regenerated: int = 0
    """Turns that were generated again from the same prompt."""
    resumed: int = 0
    recovered_s: float | None = None
    """The longest time from a fault until what it disturbed went on."""
    wall_s: float = 0.0
    sums: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Name of a sum -> (what the ledger counts, what is counted without it)."""
    skipped: str = ""
    """Why this machine cannot inject the fault; empty for a row that ran."""
    wrong: list[str] = field(default_factory=list)
    """What does not add up; empty for a good row."""


def read_file(run: FaultRun) -> list[dict[str, Any]]:
    """The lines of the consumer's file."""
    return (
        [json.loads(line) for line in run.out.read_text().splitlines()] if run.out.exists() else []
    )


def fill(result: Result, run: FaultRun) -> None:
    """Fill in the result of a run that has ended."""
    stats, lines = run.stats(), read_file(run)
    delivered = Counter(str(line["job"]) for line in lines)
    dead = run.dead()
    dropped = run.dropped(run.expected - set(delivered) - set(dead))
    result.faults = run.faults
    result.jobs, result.done, result.dead = len(run.expected), stats["done"], stats["dead"]
    result.delivered = len(delivered)
    result.lost = len(missing := run.expected - set(delivered) - set(dead) - dropped)
    result.duplicated = sum(delivered.values()) - len(delivered)
    result.regenerated = run.engine_proxy.regenerated
    result.resumed = stats["resumed"]
    result.recovered_s = max(run.recovered_s, default=None)
    result.wrong += run.wrong
    if not result.faults:
        result.wrong.append("no fault happened")
    result.sums = _sums(stats, run, lines, len(dropped), len(dead))
    result.wrong += [
        f"{what}: {ours}, not {theirs}"
        for what, (ours, theirs) in result.sums.items()
        if ours != theirs
    ]
    result.wrong += _check_lines(lines, run)
    bound = run.max_regenerated
    if bound is not None and not run.lost_bytes and result.regenerated > bound:
        result.wrong.append(
            f"{result.regenerated} turns were generated again, where {bound} were disturbed"
        )
    if strangers := set(delivered) - run.expected:
        result.wrong.append(f"delivered, but never submitted: {sorted(strangers)[:3]}")
    if set(dead) != run.expected_dead:
        odd = [f"{job}: {why[:300]}" for job, why in dead.items()]
        result.wrong.append(
            f"{len(dead)} dead where {len(run.expected_dead)} were to die: {odd[:2]}"
        )
    if both := set(dead) & set(delivered):
        result.wrong.append(f"dead and delivered: {sorted(both)[:3]}")
    if missing:
        result.wrong.append(f"lost: {sorted(missing)[:3]}")
    if result.duplicated:
        result.wrong.append(f"twice: {[job for job, times in delivered.items() if times > 1][:3]}")


def _sums(
    stats: dict[str, Any], run: FaultRun, lines: list[dict[str, Any]], dropped: int, dead: int
) -> dict[str, tuple[int, int]]:
    """Pairs that must be equal: what the ledger counts, and what is counted without it."""
    left = ("queued", "leased", "groups_open", "groups_ready", "groups_held")
    delivered = len({line["job"] for line in lines})
    sums = {
        "submitted": (stats["submitted"], len(run.expected)),
        "done + dead + surplus = submitted": (
            stats["done"] + stats["dead"] + stats["surplus"],
            len(run.expected),
        ),
        "delivered = jobs in the file": (stats["delivered"], delivered),
        "done = jobs in the file + members of dropped groups": (stats["done"], delivered + dropped),
        "dead = dead letters": (stats["dead"], dead),
        "lines = jobs in the file": (len(lines), delivered),
        "queued, leased, open, ready or held": (sum(stats[name] for name in left), 0),
    }
    if not dropped and not stats["dead"] and not run.lost_bytes:
        sums["turns = turns in the file"] = stats["turns"], sum(line["turns"] for line in lines)
        sums["tokens sampled = in the file"] = (
            stats["sampled_tokens"],
            sum(sum(line["mask"]) for line in lines),
        )
    return sums


def _check_lines(lines: list[dict[str, Any]], run: FaultRun) -> list[str]:
    """Compare each line with the ledger's journal and the engine's recording."""
    wrong = []
    for line in lines:
        job = line["job"]
        if (line["reward"], line["stop"], line["failure"]) != (1.0, "done", None):
            wrong.append(
                f"{job}: stop {line['stop']}, reward {line['reward']}, failure {line['failure']}"
            )
        if run.journals.get(job, line) != line:
            wrong.append(f"{job}: the file has another trajectory than the journal had")
        if (at := _first_unsampled(line, run.engine_proxy)) is not None:
            wrong.append(f"{job}: the engine never sampled its token {at}")
    return wrong[:5]


def _first_unsampled(line: dict[str, Any], engine_proxy: EngineProxy) -> int | None:
    """The position of the first sampled token that no recorded reply holds, or None."""
    tokens, mask, replies = line["tokens"], line["mask"], engine_proxy.replies[line["job"]]
    at = 0
    while at < len(tokens):
        if not mask[at]:
            at += 1
            continue
        sampled = replies.get(prompt_digest(tokens[:at]), [])
        same = [
            ids
            for ids in sampled
            if ids and tokens[at : at + len(ids)] == ids and all(mask[at : at + len(ids)])
        ]
        if not same:
            return at
        at += max(map(len, same))
    return None


TITLES = (
    *("row", "seed", "faults", "jobs", "done", "dead", "delivered", "lost", "duplicated"),
    *("turns again", "resumed", "recovered s", "wall s"),
)


def table(results: list[Result]) -> str:
    """The results as a Markdown table, one line each."""
    rows = [
        (
            *(a.row, a.seed, a.faults, a.jobs, a.done, a.dead, a.delivered, a.lost, a.duplicated),
            *(a.regenerated, a.resumed),
            "-" if a.recovered_s is None else f"{a.recovered_s:.1f}",
            f"{a.wall_s:.0f}",
        )
        for a in results
    ]
    return _markdown([TITLES, *[tuple(map(str, row)) for row in rows]])


def sums(result: Result) -> str:
    """The sums of one result as a Markdown table."""
    return _markdown(
        [
            (result.row, "rollq stats", "counted"),
            *[(what, str(a), str(b)) for what, (a, b) in result.sums.items()],
        ]
    )


def _markdown(texts: Sequence[Sequence[str]]) -> str:
    widths = [max(len(text[n]) for text in texts) for n in range(len(texts[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(t, widths, strict=True)) + " |"
        for t in texts
    ]
    return "\n".join(
        [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]
    )
