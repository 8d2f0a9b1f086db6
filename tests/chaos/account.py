"""The account of a run: what the consumer's file, the ledger and the engine's recording say, and whether they agree.

Nothing may be lost and nothing may come twice; an infrastructure failure is never a reward of 0 (the replay engine
plays perfectly here, so every delivered reward is 1); every sampled token was sampled by the engine, behind exactly the
tokens that precede it.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.gateway import Gateway, digest
from tests.chaos.scene import Scene


@dataclass(slots=True, kw_only=True)
class Account:
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
    """Turns that the engine was asked for again from the same prompt."""
    resumed: int = 0
    recovered_s: float | None = None
    """The longest time from a fault to what it had disturbed going on."""
    wall_s: float = 0.0
    sums: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What was summed up -> (by the ledger, without it)."""
    skipped: str = ""
    """Why this machine cannot inject the fault; empty for a row that was played."""
    wrong: list[str] = field(default_factory=list)
    """What does not add up, in words; empty for a good row."""

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


def read(scene: Scene) -> list[dict[str, Any]]:
    """The lines of the consumer's file."""
    return [json.loads(line) for line in scene.out.read_text().splitlines()] if scene.out.exists() else []


def settle(account: Account, scene: Scene) -> None:
    """Fills in the account of a run that has ended."""
    stats, lines = scene.stats(), read(scene)
    delivered = Counter(str(line["job"]) for line in lines)
    dead = scene.dead()
    dropped = scene.dropped(scene.expected - set(delivered) - set(dead))
    account.faults = scene.faults
    account.jobs, account.done, account.dead = len(scene.expected), stats["done"], stats["dead"]
    account.delivered = len(delivered)
    account.lost = len(missing := scene.expected - set(delivered) - set(dead) - dropped)
    account.duplicated = sum(delivered.values()) - len(delivered) + stats["duplicates"]
    account.regenerated = scene.gateway.regenerated
    account.resumed = stats["resumed"]
    account.recovered_s = max(scene.recovered_s, default=None)
    account.wrong += scene.wrong
    if not account.faults:
        account.wrong.append("no fault happened")
    account.sums = _sums(stats, scene, lines, len(dropped), len(dead))
    account.wrong += [
        f"{what}: {ours}, not {theirs}" for what, (ours, theirs) in account.sums.items() if ours != theirs
    ]
    account.wrong += _content(lines, scene)
    bound = scene.regenerable
    if bound is not None and account.regenerated > bound:
        account.wrong.append(f"{account.regenerated} turns were generated again, where {bound} were disturbed")
    if strangers := set(delivered) - scene.expected:
        account.wrong.append(f"delivered, but never submitted: {sorted(strangers)[:3]}")
    if set(dead) != scene.doomed:
        odd = [f"{job}: {why[:300]}" for job, why in dead.items()]
        account.wrong.append(f"{len(dead)} dead where {len(scene.doomed)} were to die: {odd[:2]}")
    if both := set(dead) & set(delivered):
        account.wrong.append(f"dead and delivered: {sorted(both)[:3]}")
    if missing:
        account.wrong.append(f"lost: {sorted(missing)[:3]}")
    if account.duplicated:
        account.wrong.append(f"twice: {[job for job, times in delivered.items() if times > 1][:3]}")


def _sums(
    stats: dict[str, Any], scene: Scene, lines: list[dict[str, Any]], dropped: int, dead: int
) -> dict[str, tuple[int, int]]:
    """What must be equal: what the ledger counts, and what can be counted without it."""
    left = ("queued", "leased", "groups_open", "groups_ready", "groups_held")
    delivered = len({line["job"] for line in lines})
    sums = {
        "submitted": (stats["submitted"], len(scene.expected)),
        "done + dead = submitted": (stats["done"] + stats["dead"], len(scene.expected)),
        "delivered = jobs in the file": (stats["delivered"], delivered),
        "done = jobs in the file + members of dropped groups": (stats["done"], delivered + dropped),
        "dead = letters": (stats["dead"], dead),
        "duplicates = lines that come again": (stats["duplicates"], len(lines) - delivered),
        "queued, leased, open, ready or held": (sum(stats[name] for name in left), 0),
    }
    if not dropped and not stats["dead"]:
        sums["turns = turns in the file"] = stats["turns"], sum(line["turns"] for line in lines)
        sums["tokens sampled = in the file"] = stats["sampled_tokens"], sum(sum(line["mask"]) for line in lines)
    return sums


def _content(lines: list[dict[str, Any]], scene: Scene) -> list[str]:
    """The lines themselves, against the ledger's journals and the engine's recording."""
    wrong = []
    for line in lines:
        job = line["job"]
        if (line["reward"], line["stop"], line["failure"]) != (1.0, "done", None):
            wrong.append(f"{job}: stop {line['stop']}, reward {line['reward']}, failure {line['failure']}")
        if scene.journals.get(job, line) != line:
            wrong.append(f"{job}: the file has another trajectory than the journal had")
        if (at := _unheard(line, scene.gateway)) is not None:
            wrong.append(f"{job}: the engine never sampled its token {at}")
    return wrong[:5]


def _unheard(line: dict[str, Any], gateway: Gateway) -> int | None:
    """The position of the first sampled token that no recorded answer accounts for."""
    tokens, mask, replies = line["tokens"], line["mask"], gateway.replies[line["job"]]
    at = 0
    while at < len(tokens):
        if not mask[at]:
            at += 1
            continue
        answers = replies.get(digest(tokens[:at]), [])
        said = [ids for ids in answers if ids and tokens[at : at + len(ids)] == ids and all(mask[at : at + len(ids)])]
        if not said:
            return at
        at += max(map(len, said))
    return None


TITLES = ("row", "seed", "faults", "jobs", "done", "dead", "delivered", "lost", "duplicated", "turns again",
          "resumed", "recovered s", "wall s")  # fmt: skip


def table(accounts: list[Account]) -> str:
    """The accounts as a Markdown table, a line each."""
    rows = [
        (a.row, a.seed, a.faults, a.jobs, a.done, a.dead, a.delivered, a.lost, a.duplicated, a.regenerated, a.resumed,
         "-" if a.recovered_s is None else f"{a.recovered_s:.1f}", f"{a.wall_s:.0f}")
        for a in accounts
    ]  # fmt: skip
    return _markdown([TITLES, *[tuple(map(str, row)) for row in rows]])


def sums(account: Account) -> str:
    """One account's sums as a Markdown table."""
    return _markdown(
        [(account.row, "rollq stats", "counted"), *[(what, str(a), str(b)) for what, (a, b) in account.sums.items()]]
    )


def _markdown(texts: Sequence[Sequence[str]]) -> str:
    widths = [max(len(text[n]) for text in texts) for n in range(len(texts[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(t, widths, strict=True)) + " |" for t in texts]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
