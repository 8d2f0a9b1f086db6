"""Finished groups on their way out of the ledger: a consumer takes and holds them, then
acknowledges, skips or rejects them.

Every change is one Lua script, atomic and safe to repeat with the same arguments. A hold's token is
`session/number` (lua/holds.lua); consumers choose it. `owner` is what `open` gave the process that
opened a named consumer.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import redis

from rollq.errors import ContractError, LedgerError, NotHeld, SettingsError, Unwritable
from rollq.job import Purpose, job_id
from rollq.ledger.constants import HOLD_S, LONGEST_SKIP
from rollq.ledger.replies import TakenGroup
from rollq.ledger.scripts import Reply, Scripts, short_reason
from rollq.servers.retry import CONNECTION_ERRORS

SHORTEST_WAIT_S = 0.01
"""0 would mean without end."""
REFUSED_S = 1.0
"""Seconds between two tries to wait in a Redis that refuses it."""
LATE_S = 1.0
"""A wait that ends later than this was sent again because its connection broke, so a wake-up may be
lost.
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """The reply to a take: groups, or why there are none."""

    groups: Sequence[TakenGroup] = ()
    at: float = 0.0
    """Unix time on Redis's clock, when there are no groups."""
    exists: bool = True
    """True if the run exists."""
    sealed: bool = False
    open: int = 0
    ready: int = 0
    others: int = 0
    """Number of groups that other consumers hold."""
    last: bool = False
    """The run is sealed, and no more groups come than are ready."""
    over: bool = False
    """The run is sealed, and no groups come at all."""
    dropped: int = 0
    """Number of groups of both purposes that were dropped, or skipped as stale."""
    ends_s: float | None = None
    """Seconds until the first hold ends. None if no other consumer holds anything."""
    unread: bool = False
    """A group was dropped because its record could not be read, or skipped because it was too old:
    take again.
    """
    policy_step: int | None = None
    """The published step. None if nothing was published, and the run has no admission."""
    published: int | None = None
    """Number of publications of a policy. None if the reply does not say."""
    max_staleness: int | None = None
    """The bound that groups for training must keep. None if the run has no admission, or nothing
    was published.
    """


@dataclass(frozen=True, slots=True)
class Opened:
    """A named consumer that this process owns now."""

    owner: str
    next: int
    """Step of the next new batch."""
    next_in_ledger: int
    """The next step as far as the ledger knew. It is smaller than `next` when the ledger knows less
    than the trainer's checkpoint.
    """
    filling: int | None
    """The step of a batch that a filter left incomplete, so that no trainer has seen it. None:
    there is none.
    """
    steps: Sequence[int] = field(default_factory=list)
    """Steps of the batches that the consumer before it held, in order."""


def named_session(purpose: Purpose, name: str) -> str:
    """The session of a named consumer."""
    return f"@{purpose.value}:{name}"


class Deliveries:
    """The groups of one run on their way to consumers.

    Every method raises LedgerError, naming run and key, when Redis refuses a write or a key cannot
    be read, and redis.ConnectionError when Redis cannot be reached.
    """

    def __init__(self, client: "redis.Redis", run: str) -> None:
        self.scripts = Scripts(client, run)
        self.redis = self.scripts.redis
        self.run = run
        self.keys = self.scripts.keys

    def take(
        self,
        groups: int,
        token: str,
        hold_s: float = HOLD_S,
        purpose: Purpose = Purpose.TRAIN,
        *,
        owner: str = "",
        since: float = 0.0,
        ordered: bool = False,
        exact: bool = False,
        again: bool = False,
        wake: bool = False,
        fill: bool = False,
    ) -> Taken:
        """Holds that many groups, the lowest sequence first, or none. Fewer are held only at the
        end of a sealed run.

        `since`: when this consumer began to wait (on Redis's clock, or 0.0 for now). A short batch
        is given once every other consumer that holds groups has renewed them since then. `ordered`:
        no group leaves before an open one of lower sequence. `exact`: no short batch. `again`: only
        what is held under the token already. `wake`: without groups, `wait` of this session ends
        when there may be some. `fill`: what is held under the token already counts, and as many
        groups as it lacks are added, or none.

        In a run with admission (`Client.limit_staleness`) train groups go in the order of
        submission. Raises SettingsError for more groups than a training step has there, and NotHeld
        when another process opened the name.

        Holds end unless they are renewed. After a silence of all takers and reapers, no hold ends
        before its consumer had time to renew it.
        """
        flags = (ordered, exact, again, wake, fill)
        args = [groups, token, hold_s, purpose.value, owner, f"{since:.6f}", *map(int, flags)]
        reply = self.scripts.call("take", *args)
        match reply.status:
            case "groups":
                return Taken(
                    groups=[self._read_group(Reply([b"group", *row])) for row in reply["groups"]],
                    dropped=reply["dropped"],
                    published=reply["published"],
                    policy_step=reply.step("step"),
                    max_staleness=reply.step("bound"),
                )
            case "again":
                return Taken(unread=True)
            case "fenced":
                self._taken_over(token)
            case "large":
                raise SettingsError(
                    f"run {self.run}: a batch of {groups} groups is more than the "
                    f"{reply['most']} of a training step that the run was given with its bound "
                    "on staleness: ask for at most that many"
                )
        ends_s = float(reply["ends_s"])
        return Taken(
            at=float(reply["time"]),
            exists=bool(reply["exists"]),
            sealed=bool(reply["sealed"]),
            open=reply["open"],
            ready=reply["ready"],
            others=reply["others"],
            last=bool(reply["last"]),
            over=bool(reply["over"]),
            dropped=reply["dropped"],
            ends_s=ends_s if ends_s >= 0 else None,
            policy_step=reply.step("step"),
            published=reply["published"],
        )

    def _read_group(self, row: Reply) -> TakenGroup:
        name = row.text("name")
        ids: dict[bytes, list[str]] = {b"done": [], b"dead": [], b"surplus": []}
        for sample, state in enumerate(row["states"]):
            ids[state].append(job_id(self.run, name, sample))
        return TakenGroup(
            id=name,
            seq=row["seq"],
            size=row["size"],
            members=ids[b"done"],
            dead=ids[b"dead"],
            handed=row["handed"],
            started=row.step("started"),
        )

    def wait(self, session: str, seconds: float) -> bool:
        """Blocks until the session is woken, at most that long. Returns whether to look for groups
        now: it was woken, or a wake-up may be lost.
        """
        key = f"{self.keys.prefix}wake:{session}"
        began = time.monotonic()
        try:
            woken = self.scripts.guard(
                key,
                lambda: self.redis.execute_command(
                    "BLPOP", key, f"{max(seconds, SHORTEST_WAIT_S):.3f}"
                ),
            )
        except CONNECTION_ERRORS:
            return True
        except Unwritable:  # Redis lets no client wait, for example because it is a replica now
            time.sleep(min(seconds, REFUSED_S))
            return True
        return bool(woken) or time.monotonic() - began > seconds + LATE_S

    def renew_holds(
        self,
        tokens: Sequence[str],
        hold_s: float = HOLD_S,
        purpose: Purpose = Purpose.TRAIN,
        *,
        owner: str = "",
    ) -> list[str]:
        """Keeps batches for longer. Returns the tokens of those that are lost."""
        if not tokens:
            return []
        reply = self.scripts.call("renew_holds", purpose.value, hold_s, owner, *tokens)
        return [tokens[position] for position in reply["lost"]]

    def ack(self, token: str, groups: Sequence[str] = (), *, owner: str = "") -> None:
        """Acknowledges these groups of a hold, or all of it, and drops what they stored. Raises
        NotHeld, and then acknowledges none.
        """
        self._end(token, owner, "", groups)

    def skip(
        self, token: str, group: str, reason: str, *, owner: str = "", filling: bool = False
    ) -> None:
        """The group is not trained on and not handed out again; it counts under the reason. Raises
        NotHeld.

        `filling`: the batch is made up again with `take(fill=True)`, also by the consumer's
        successor.
        """
        if not reason or len(reason) > LONGEST_SKIP:
            raise ContractError(
                f"group {self.run}/{group}: the reason of a skip has 1 to {LONGEST_SKIP} "
                f"characters, not {len(reason)}: groups are counted by reason, so use few of them"
            )
        self._end(token, owner, reason, [group], filling)

    def _end(
        self, token: str, owner: str, reason: str, groups: Sequence[str], filling: bool = False
    ) -> None:
        reply = self.scripts.call("ack", token, owner, reason, int(filling), *groups)
        if reply.status == "fenced":
            self._taken_over(token)
        if reply.status == "lost":
            lost = f"run {self.run}: a batch"
            if "group" in reply:
                lost = f"group {self.run}/{reply.text('group')}"
            raise NotHeld(
                f"{lost} is not held under {token}: it is not a group of that batch, or the "
                "hold was lost and another consumer has it or will get it"
            )

    def give_back(self, tokens: Sequence[str], purpose: Purpose) -> None:
        """Ends these holds now, so that other consumers get their groups."""
        if tokens:
            self.scripts.call("give_back", purpose.value, *tokens)

    def reject(self, token: str, job_id: str, reason: str, *, owner: str = "") -> None:
        """Ends a job of this hold that cannot be read as dead, of class job, and gives the whole
        hold back. Raises NotHeld.
        """
        self.scripts.parse(job_id)
        reply = self.scripts.call("reject", token, owner, job_id, short_reason(reason))
        if reply.status == "fenced":
            self._taken_over(token)
        if reply.status == "lost":
            raise NotHeld(f"job {job_id} is not held under {token} any more")

    def open(
        self,
        name: str,
        purpose: Purpose,
        text: str,
        hold_s: float = HOLD_S,
        step: int | None = None,
    ) -> Opened:
        """Takes over a consumer's name and its holds; its owner before is fenced. A repeat has the
        same `text`.

        `step`: the last step that the trainer's checkpoint holds; the caller acknowledges the steps
        up to it. Raises LedgerError when a later step is acknowledged already, because its groups
        cannot come again.
        """
        checkpoint = -1 if step is None else step
        reply = self.scripts.call("open_consumer", purpose.value, name, text, hold_s, checkpoint)
        if reply.status == "acked":
            acked = reply["step"]
            raise LedgerError(
                f"run {self.run}: consumer {name} has acknowledged up to step {acked}, so the "
                f"batches after step {step} cannot come again. Acknowledge a batch once a "
                "checkpoint holds it (`consumer.ack(up_to=)`). To go on without those batches, "
                f"open the consumer without a step, or with step={acked}."
            )
        filling = reply["filling"]
        return Opened(
            owner=reply.text("owner"),
            next=reply["next"],
            next_in_ledger=reply["next_in_ledger"],
            filling=None if filling < 0 else filling,
            steps=reply["steps"],
        )

    def _taken_over(self, token: str) -> NoReturn:
        name = token.partition(":")[2].rpartition("/")[0]
        raise NotHeld(
            f"run {self.run}: another process has opened consumer {name!r} and holds its batches "
            "now. Only one process at a time may use a name: end this one, or give it another name."
        )
