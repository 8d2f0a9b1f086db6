"""The policies of a run: the published one, the steps of its versions, and the admission of groups
ahead of the trainer.

Every change is one Lua script, atomic and safe to repeat with the same arguments. docs/ledger.md
says what holds.
"""

import logging
import re
from collections.abc import Collection, Sequence

import redis

from rollq.errors import SettingsError
from rollq.ledger.replies import Admission, Published
from rollq.ledger.scripts import Reply, Scripts
from rollq.ledger.stored import count, text
from rollq.numbers import whole_number

log = logging.getLogger("rollq")

LARGEST_BOUND = 1_000_000
"""Largest number that `limit_staleness` takes."""
LAST_STEP = 1_000_000_000
"""Steps are below it: it is the largest number of the scripts (MOST in lua/common.lua)."""
STEP_NAME = re.compile("0*[0-9]{1,9}")
"""A name that is a step below LAST_STEP."""


class Versions:
    """The policies of one run.

    Every method raises LedgerError, naming run and key, when Redis refuses a write or a key cannot
    be read, and redis.ConnectionError when Redis cannot be reached.
    """

    def __init__(self, client: "redis.Redis", run: str) -> None:
        self.scripts = Scripts(client, run)
        self.redis = self.scripts.redis
        self.run = run
        self.keys = self.scripts.keys

    def publish(self, step: int, weight_version: str, token: str, number: int = 0) -> int:
        """Records that the engines serve the policy of this training step. Returns the number of
        publications.

        A repeat with the same `token` changes nothing. With the `number` that an earlier
        publication got, that one is repeated, which changes nothing unless Redis has lost it.
        Raises SettingsError when another step was published under this version's name.
        """
        reply = self.scripts.call("publish", step, weight_version, token, number)
        if reply.status == "name":
            raise self._name_conflict(step, weight_version, int(reply["step"]))
        return int(reply["number"])

    def check_name(self, step: int, weight_version: str) -> None:
        """Raises SettingsError when another step was published under this version's name."""
        published_as = self._published_steps([weight_version]).get(weight_version, step)
        if published_as != step:
            raise self._name_conflict(step, weight_version, published_as)

    def _name_conflict(self, step: int, weight_version: str, published_as: int) -> SettingsError:
        return SettingsError(
            f"run {self.run}: weight version {weight_version!r} is step {published_as}, not "
            f"{step}: a token's step is found by the version's name, so give the weights of each "
            "step another name"
        )

    def published(self) -> Published | None:
        """The last publication; None before the first."""
        key = self.keys.meta
        step, version = self.scripts.command("hmget", key, "step", "version")
        if not step:
            return None
        return Published(count(step, key, "step"), text(version))

    def adapter(self) -> str | None:
        """The LoRA adapter that these versions belong to: "" without one, None while the run has
        no jobs.
        """
        seq, name = self.scripts.command("hmget", self.keys.meta, "seq", "adapter")
        return None if seq is None else text(name)

    def limit_staleness(
        self, groups_per_batch: int, max_staleness: int, max_running: int | None
    ) -> None:
        """Pins how many groups for training may run ahead of the trainer. Raises SettingsError for
        wrong numbers, and when the run has others.
        """
        numbers = {"groups_per_batch": (groups_per_batch, 1), "max_staleness": (max_staleness, 0)}
        if max_running is not None:
            numbers["max_running"] = (max_running, 1)
        for name, (number, at_least) in numbers.items():
            whole_number(f"run {self.run}: {name}", number, at_least, LARGEST_BOUND, SettingsError)
        jobs, bound = self.scripts.command("hmget", self.keys.meta, "seq", "batch")
        if jobs and not bound:
            log.warning(
                "run %s: limit_staleness came after groups that were let in without a bound: call "
                "it before the first submission",
                self.run,
            )
        bounds = [groups_per_batch, max_staleness, max_running or 0]
        reply = self.scripts.call("admit", *bounds)
        if reply.status == "other":
            batch, staleness, running = (
                int(reply[name]) for name in ("batch", "staleness", "running")
            )
            raise SettingsError(
                f"run {self.run} admits groups for batches of {batch} with max_staleness "
                f"{staleness} and max_running {running or None}, not {groups_per_batch}, "
                f"{max_staleness} and {max_running}: admission is pinned for the run. Leave it as "
                "it is, or use another run."
            )

    def steps(self, names: Collection[str]) -> dict[str, int]:
        """The step of each version that was published. A name that is a number and was not
        published is its own step, if `publish` would take it.
        """
        if not names:
            return {}
        numbers = {name: int(name) for name in names if STEP_NAME.fullmatch(name)}
        return numbers | self._published_steps(names)

    def _published_steps(self, names: Collection[str]) -> dict[str, int]:
        key = self.keys.versions
        # an engine may name its weights with half a surrogate pair, which is never published
        fields = [name.encode("utf-8", "surrogatepass") for name in names]
        steps: Sequence[bytes | None] = self.scripts.command("hmget", key, fields)
        published = {}
        for name, step in zip(names, steps, strict=True):
            if step is not None:
                published[name] = count(step, key, name)
        return published

    def is_fresh(self, weight_version: str, oldest: int) -> bool:
        """True if these weights are of the `oldest` step or a later one. When the trainer has gone
        back to a checkpoint since, those that are published now are fresh, too.
        """
        step = self.steps([weight_version]).get(weight_version, -1)
        if step >= oldest:
            return True
        published = self.published()
        return published is None or step >= published.step


def read_policy(reply: Reply) -> tuple[Published | None, Admission | None]:
    """The run's policy and admission in a reply of lua/snapshot.lua."""
    step = reply.step("step")
    published = None if step is None else Published(step, reply.text("version"))
    if not reply["batch"]:
        return published, None
    admission = Admission(
        groups_per_batch=reply["batch"],
        max_staleness=reply["staleness"],
        max_running=reply["running"] or None,
        step=step or 0,
        trained=reply["trained"],
        capacity=reply["capacity"],
    )
    return published, admission
