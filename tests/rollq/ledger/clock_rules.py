"""The rules of the state machine by which time passes: leases, backoffs and outages, and a clock
that is set.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from rollq.job import Purpose
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import deliveries, take
from tests.rollq.ledger.model import NAMES, PURPOSE, Model

purposes = st.sampled_from([Purpose.TRAIN, Purpose.TRAIN, Purpose.EVAL])


class ClockRules(Model, RuleBasedStateMachine):
    ledger: Ledger

    def calm(self) -> None:
        """Redis was never away."""
        self.ledger.redis.hset(
            self.ledger.keys.meta, mapping={"beat": self.ledger.scripts.now(), "grace": 0}
        )

    def leases(self) -> list[tuple[str, str]]:
        return [(job_id, self.jobs[job_id].lease) for job_id in self.of_jobs("leased")]

    def reap(self, *empty: str) -> set[str]:
        return {message.job_id for message in self.ledger.reap(100, empty)}

    @precondition(lambda self: self.of_jobs("leased"))
    @rule(data=st.data(), after_an_outage=st.booleans())
    def leases_run_out(self, data: st.DataObject, after_an_outage: bool) -> None:
        leased = self.of_jobs("leased")
        chosen = data.draw(st.lists(st.sampled_from(leased), min_size=1, unique=True))
        for job_id in chosen:
            self.ledger.redis.zadd(
                self.ledger.keys.leased, {f"{job_id}#{self.jobs[job_id].lease}": 1}, xx=True
            )
        self.calm()
        if after_an_outage:
            self.ledger.redis.hset(self.ledger.keys.meta, "beat", self.ledger.scripts.now() - 6)
            assert not self.reap() & set(leased)
            assert self.ledger.renew_leases(self.leases()) == []
            return
        expected = {
            job_id for job_id in chosen if self.fails(job_id, "worker", "expiry") == "queued"
        }
        # What runs out is due at once; released and freshly failed ones may be due as well.
        assert expected <= self.reap()

    @rule(by=st.sampled_from([-7200.0, -100.0, 100.0, 7200.0]))
    def redis_is_set_another_time(self, by: float) -> None:
        """No lease is lost, and no job waits longer."""
        redis, keys = self.ledger.redis, self.ledger.keys
        self.calm()
        for key in (
            keys.queued,
            keys.leased,
            *(f"{keys.prefix}held:{purpose}" for purpose in Purpose),
        ):
            times = {
                member: at - by
                for member, at in redis.zrange(key, 0, -1, withscores=True)
                if at > 0
            }
            if times:
                redis.zadd(key, times)
        for job_id, found in self.jobs.items():
            # A backoff that has run out stays so, wherever the clock goes.
            for name in ("not_before", "deadline") if found.backoff else ("deadline",):
                if at := float(redis.hget(keys.job(job_id), name) or 0):
                    redis.hset(keys.job(job_id), name, at - by)
            found.backoff = False
        for purpose in Purpose:
            if heard := float(redis.hget(keys.meta, f"heard:{purpose}") or 0):
                redis.hset(keys.meta, f"heard:{purpose}", heard - by)
        redis.hset(keys.meta, "beat", self.ledger.scripts.now() - by)
        due = self.reap()
        assert due <= set(self.of_jobs("queued"))
        if abs(by) > 1000:
            assert due == set(self.of_jobs("queued"))
        before = self.ledger.scripts.now()
        # A dead worker's lease ends no later than one lease from now, wherever the clock was.
        assert all(
            end <= before + 15 for _, end in redis.zrange(keys.leased, 0, -1, withscores=True)
        )
        assert self.ledger.renew_leases(self.leases()) == []
        ends = [redis.zscore(keys.leased, f"{job_id}#{lease}") for job_id, lease in self.leases()]
        assert all(before + 15 <= end <= self.ledger.scripts.now() + 15 for end in ends)
        for name in self.of_state("held"):
            deliveries(self.ledger).renew_holds([self.groups[name].token], purpose=PURPOSE[name])

    @precondition(lambda self: any(found.backoff for found in self.jobs.values()))
    @rule(data=st.data())
    def a_backoff_runs_out(self, data: st.DataObject) -> None:
        self.forget_backoff(
            data.draw(st.sampled_from([job_id for job_id, j in self.jobs.items() if j.backoff]))
        )

    def forget_backoff(self, job_id: str) -> None:
        self.jobs[job_id].backoff = False
        self.ledger.redis.hset(self.ledger.keys.job(job_id), "not_before", 0)

    @precondition(lambda self: self.of_state("held") and not self.sealed)
    @rule(purpose=purposes, seconds=st.sampled_from([6.0, 600.0]))
    def holds_run_out_in_an_outage(self, purpose: Purpose, seconds: float) -> None:
        """No consumer could renew them: the first taker gets none of them, and they are renewed."""
        redis, held = self.ledger.redis, f"{self.ledger.keys.prefix}held:{purpose}"
        mine = [name for name in self.of_state("held") if PURPOSE[name] is purpose]
        if not mine:
            return
        redis.hset(self.ledger.keys.meta, f"heard:{purpose}", self.ledger.scripts.now() - seconds)
        redis.zadd(held, dict.fromkeys(mine, self.ledger.scripts.now() - 1), xx=True)
        assert take(self.ledger, len(NAMES) + 1, "early", purpose=purpose) == []
        tokens = [self.groups[name].token for name in mine]
        assert deliveries(self.ledger).renew_holds(tokens, purpose=purpose) == []
