"""Every name that rollq uses in Redis.

Scripts get the prefix of a run's keys and build the names as `Keys` does. Times: Unix seconds,
Redis's clock. `<job>` is `run/group/sample`.

    rollq:runs                   zset  run -> when it was first submitted to, by the producer's
                                       clock
    rollq:active                 zset  runs that have queued or leased jobs -> when they last got
                                       some, by the clock of who gave them
    rollq:reaper                 str   the worker that reaps now; expires when it stops
    rollq:workers                hash  live worker -> what it plays (workers/live_workers.py)
    rollq:engines:<name>         set   addresses of engines, which operators edit:
                                       workers/engine_addresses.py
    rollq, rollq.<queue>         list  the Celery queues; possibly in another Redis, never touched
                                       by a script

    rollq:{run}:run              hash  seq, sealed, tokenizer_hash, template_hash, template_kwargs
                                       (as JSON) and adapter, if there are any; budgeted,
                                       budget:<class> (its own budgets); forget_after_s (lifetime of
                                       records of acknowledged groups); beat (when it was last
                                       reaped), grace (no lease expires before); heard:<purpose>
                                       (when a taker or a reaper was last here); full:<purpose>
                                       (when a producer last waited, and at how many groups; 0: for
                                       admission); step, version (of the policy that was published
                                       last), published (times), publication (token of the last);
                                       batch, staleness, running (0: no limit): what it admits;
                                       trained (groups counted against admission, without held
                                       ones), lent (of these, skipped: their places are free if
                                       the trainer asks for more first)
    rollq:{run}:versions         hash  weight version -> its training step
    rollq:{run}:sources          hash  source -> groups, jobs and a digest of what its producer has
                                       entered; source# -> token of its last producer
    rollq:{run}:count            hash  totals: see `LedgerReader.stats`; rejected:<total> -> how
                                       much of it jobs had that were rejected
    rollq:{run}:queued           zset  job -> when to send it next
    rollq:{run}:leased           zset  job#attempt#token -> when the lease expires; membership is
                                       the fence
    rollq:{run}:dead             zset  job -> when it died
    rollq:{run}:open:<purpose>   zset  group -> seq; members still to be played
    rollq:{run}:ready:<purpose>  zset  group -> seq; to be handed out
    rollq:{run}:held:<purpose>   zset  group -> when the hold expires
    rollq:{run}:hold:<token>     set   the groups of a batch; its token is session/number
                                       (lua/holds.lua)
    rollq:{run}:holds:<purpose>  zset  token of a hold -> when it was last renewed
    rollq:{run}:consumer:<purpose>:<name>  hash
                                       a named consumer: owner (generation#text), opened
                                       (generations), next (step), acked (the highest step), whole
                                       (the last step that was acknowledged without the names of its
                                       groups), filling (the step of a batch that a filter left
                                       incomplete)
    rollq:{run}:waiting:<purpose>  hash
                                       session of a waiting consumer -> how many groups it wants;
                                       lasts a minute
    rollq:{run}:wake:<session>   list  one entry: that consumer may try again; lasts a minute.
                                       Producers that wait for room share the session `producers`
    rollq:{run}:group:<group>    hash  seq, size, spare, viable, purpose, queue, body (the first
                                       job); state (open ready held dropped); done, dead, surplus
                                       (members so far); started (the published step at its first
                                       claim, or to which the trainer went back since); token (of
                                       the last hold), handed (times); at (when it was submitted),
                                       submitted, resubmitted (tokens of the first and the last
                                       submission); discarded (dead members whose remains were
                                       deleted); tally:<sample> (what a done member adds to the
                                       totals)
    rollq:{run}:acked:<group>    str   what is left of an acknowledged group: settle.lua
    rollq:{run}:stale            set   groups that were skipped as stale, to be replaced as dropped
                                       ones are
    rollq:{run}:prompts:<group>  hash  digest -> a first prompt that its members share
    rollq:{run}:job:<job>        hash  body (unless it is the group's with another sample), digest,
                                       deadline_s; state (queued leased done dead surplus); attempt
                                       (claims so far); token, worker, claimed, deadline, set_aside
                                       (of the last claim); not_before; restart; reach (journal
                                       entries up to the farthest turn); aside (attempts whose
                                       journal was set aside); ended (attempt#token), ended_by,
                                       outcome (of the last attempt that ended); fail:<class>
                                       (failures), class, reason (of the last); turned (turns in the
                                       journal); kept (journal entries that the last claim found);
                                       condemned, requeued (tokens); discarded
    rollq:{run}:spent            hash  worker -> seconds of its episodes by what they waited for
                                       (workers/time_spent.py)
    rollq:{run}:evaluation       hash  an evaluation's name -> its result (evaluations.py)
    rollq:{run}:solved           hash  task -> its latest group's mean reward (solve_rates.py)
    rollq:{run}:known            hash  a mixture's step -> the rates that became known before it
    rollq:{run}:journal:<job>    list  header, event, event, ...
    rollq:{run}:journal:<job>#<attempt>  list
                                       one that was set aside, by the attempt that wrote its end
    rollq:{run}:extras:<job>     hash  arrays beside the journal: name -> array; # -> the lease that
                                       wrote them
"""

from rollq.job import QUEUE

PREFIX = "rollq:"
"""Prefix of every key but the Celery queues."""
RUNS = "rollq:runs"
"""All runs."""
ACTIVE = "rollq:active"
"""The runs that a reaper looks at."""
REAPER = "rollq:reaper"
"""The worker that reaps."""
WORKERS = "rollq:workers"
"""The live workers."""
ENGINES = "rollq:engines:"
"""Sets of engines' addresses, by name."""


def celery_queue(queue: str) -> str:
    """The Celery queue of a job's queue. The prefix keeps it apart from other programs' keys in the
    same Redis.
    """
    return queue if queue == QUEUE else f"{QUEUE}.{queue}"


class Keys:
    """Names of one run's keys."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.prefix = prefix = f"rollq:{{{run}}}:"
        """Prefix of every key of the run. Scripts append the rest."""
        self.meta = f"{prefix}run"
        self.versions = f"{prefix}versions"
        self.sources = f"{prefix}sources"
        self.count = f"{prefix}count"
        self.spent = f"{prefix}spent"
        self.queued = f"{prefix}queued"
        self.leased = f"{prefix}leased"
        self.dead = f"{prefix}dead"
        self.evaluation = f"{prefix}evaluation"
        self.solved = f"{prefix}solved"
        self.solved_at_steps = f"{prefix}known"
        self.stale = f"{prefix}stale"

    def groups(self, place: str, purpose: str) -> str:
        """The groups of that purpose which are `open`, `ready` or `held`."""
        return f"{self.prefix}{place}:{purpose}"

    def group(self, group: str) -> str:
        return f"{self.prefix}group:{group}"

    def acked(self, group: str) -> str:
        return f"{self.prefix}acked:{group}"

    def prompts(self, group: str) -> str:
        return f"{self.prefix}prompts:{group}"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}job:{job_id}"

    def journal(self, job_id: str, attempt: int | None = None) -> str:
        """The current journal, or the one that was set aside under this attempt."""
        return f"{self.prefix}journal:{job_id}" + ("" if attempt is None else f"#{attempt}")

    def extras(self, job_id: str) -> str:
        return f"{self.prefix}extras:{job_id}"
