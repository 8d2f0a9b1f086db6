"""A look at the fleet as lines and tables of short texts. It knows how much room there is, and
nothing of terminals.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rollq.commands.tables import age
from rollq.export.transcript import clean
from rollq.ledger.workers.live_workers import (
    AWAY,
    OUTDATED,
    PAUSED,
    READY,
    SILENT_S,
    STALLED,
    LiveWorker,
)
from rollq.servers.refusal import MIB
from rollq.snapshot.fleet import Engine, FleetSnapshot
from rollq.snapshot.holdups import fleet_holdup
from rollq.snapshot.run import PLACES, RunSnapshot

WIDE = 120
"""Columns of a terminal from which on there is room for everything."""
LONGEST_NAME = {True: 48, False: 22}
"""Characters of a name that are shown, where the terminal is wide and where it is not."""
GOOD, BAD, SLOW, QUIET = "green", "bold red", "yellow", "dim"
STYLES = {READY: GOOD, AWAY: BAD, PAUSED: SLOW, STALLED: BAD, OUTDATED: BAD}
NONE = "-"


class Cell(NamedTuple):
    text: str
    style: str = ""


Line = Sequence[Cell]


class Table(NamedTuple):
    name: str
    columns: Sequence[str]
    rows: Sequence[Line]
    more: int = 0
    """Number of rows that were not read."""


class Frame(NamedTuple):
    head: Sequence[Line]
    holdup: Cell
    tables: Sequence[Table]


class Pace:
    """Counts the rollouts of each run that ended in the last minute."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque()

    def of(self, fleet: FleetSnapshot) -> dict[str, float]:
        """Rollouts a minute by run; none before the second look."""
        at = fleet.server.at
        now = {run.run: run.counts["done"] + run.counts["dead"] for run in fleet.runs}
        self._looks.append((at, now))
        while len(self._looks) > 2 and at - self._looks[1][0] >= 60.0:  # counted over a minute
            self._looks.popleft()
        since, before = self._looks[0]
        if at <= since:
            return {}
        return {
            # dead jobs that are played again are no longer counted
            run: max(0, count - before[run]) * 60 / (at - since)
            for run, count in now.items()
            if run in before
        }


def frame(
    fleet: FleetSnapshot, pace: Mapping[str, float], address: str, *, wide: bool = True
) -> Frame:
    holdup = fleet_holdup(fleet)
    runs = _runs(fleet.runs, pace, wide)._replace(more=fleet.more_runs)
    tables = (runs, _engines(fleet.engines, wide), _workers(fleet, wide))
    return Frame(
        head=(_title(fleet, address), _speed(fleet), _outcomes(fleet)),
        holdup=Cell(one_line(holdup), SLOW) if holdup else Cell("nothing", QUIET),
        tables=[table for table in tables if table.rows],
    )


def one_line(text: str, limit: int = 0) -> str:
    """Foreign text without control characters and line breaks."""
    text = " ".join(clean(text).split())
    return text if not limit or len(text) <= limit else text[: limit - 3] + "..."


def fitted(page: Frame, room: int) -> list[tuple[Table, int]]:
    """The tables with as many rows as fit into so many lines, and how many are left out. A table
    has its title, and a line for what is left out.
    """
    tables = page.tables
    shown = [min(len(table.rows), 1) for table in tables]  # on the lowest terminal, too
    left = room - 2 * len(tables) - sum(shown)
    while left > 0:
        cut = [i for i, table in enumerate(tables) if shown[i] < len(table.rows)]
        if not cut:
            break
        shown[min(cut, key=shown.__getitem__)] += 1  # all tables grow alike
        left -= 1
    return [
        (table._replace(rows=table.rows[:rows]), len(table.rows) - rows + table.more)
        for table, rows in zip(tables, shown, strict=True)
    ]


def _title(fleet: FleetSnapshot, address: str) -> Line:
    server = fleet.server
    clock = time.strftime("%H:%M:%S", time.localtime(fleet.server.at))
    memory = "" if server.used is None else f", {server.used // MIB} MiB"
    limit = "" if server.limit is None else f" of {server.limit // MIB}"
    return [
        Cell("rollq top", "bold"),
        Cell(clock),
        Cell(f"{address}{memory}{limit}, {server.ping_ms:.1f} ms", QUIET),
    ]


def _speed(fleet: FleetSnapshot) -> Line:
    full = fleet.slots and fleet.in_flight >= fleet.slots
    return [
        Cell(f"{_count(len(fleet.workers), 'worker')}, {_count(len(fleet.engines), 'engine')}"),
        Cell(f"playing {fleet.in_flight} of {fleet.slots}", SLOW if full else ""),
        Cell(f"{fleet.turns_s:,.1f} turns/s"),
        Cell(f"{fleet.tokens_s:,.0f} sampled tokens/s"),
    ]


def _outcomes(fleet: FleetSnapshot) -> Line:
    counts = [run.counts for run in fleet.runs]
    graded = [
        (of_run["reward_mean"], sum(of_run["stops"].values()))
        for of_run in counts
        if of_run["reward_mean"] is not None
    ]
    total = sum(count for _, count in graded)
    reward = f"{sum(mean * count for mean, count in graded) / total:.3f}" if total else NONE
    stops = Counter[str]()
    failures = Counter[str]()
    dead = sum(of_run["dead"] for of_run in counts)
    for of_run in counts:
        stops.update(of_run["stops"])
        failures.update(of_run["failures"])
    why = f" (failures: {_counts(failures)})" if failures else ""
    outcomes = [
        Cell(f"reward {reward}"),
        Cell(f"stops {_counts(stops)}"),
        Cell(f"{dead} dead{why}", BAD if dead else ""),
    ]
    if changed := sum(of_run["changed_prompts"] for of_run in counts):
        outcomes.append(Cell(f"{changed} traces by changed system prompts", BAD))
    return outcomes


def _counts(counts: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{one_line(name, 20)} {count}" for name, count in Counter(counts).most_common(4))
        or NONE
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _runs(runs: Sequence[RunSnapshot], pace: Mapping[str, float], wide: bool) -> Table:
    columns = ["RUN", "DONE", "PLAYED", "QUEUED", "DEAD", "REWARD", "GROUPS", "OLDEST", "STALE"]
    if wide:
        columns += ["ROLLOUTS/MIN", "OLDEST GROUP", "STOPS"]
    rows = [_run(run, pace.get(run.run), wide) for run in runs]
    return Table("runs", columns, [row[: len(columns)] for row in rows])


def _run(run: RunSnapshot, pace: float | None, wide: bool) -> list[Cell]:
    counts = run.counts
    mean = counts["reward_mean"]
    groups = "/".join(str(counts[f"groups_{place}"]) for place in PLACES)
    oldest = run.oldest.name if run.oldest else NONE
    return [
        Cell(one_line(run.run, LONGEST_NAME[wide]), "" if run.has_work else QUIET),
        Cell(f"{counts['done']}/{counts['submitted']}"),
        _number(counts["leased"]),
        _number(counts["queued"]),
        _number(counts["dead"], BAD),
        Cell(NONE if mean is None else f"{mean:.3f}"),
        Cell(groups, QUIET if groups == "0/0/0" else ""),
        Cell(NONE if run.oldest_s is None else age(run.oldest_s)),
        _staleness(run),
        Cell(NONE if pace is None else f"{pace:.1f}"),
        Cell(one_line(oldest, LONGEST_NAME[False])),
        Cell(_counts(counts["stops"])),
    ]


def _number(value: int, style: str = "") -> Cell:
    return Cell(str(value), style if value else QUIET)


def _staleness(run: RunSnapshot) -> Cell:
    """Steps, of the most that are allowed."""
    steps = run.staleness("open", "ready")
    limit = run.max_staleness
    if steps is None:
        return Cell(NONE, QUIET)
    style = SLOW if limit is not None and steps >= limit > 0 else ""
    return Cell(f"{steps}" + ("" if limit is None else f" of {limit}"), style)


def _engines(engines: Sequence[Engine], wide: bool) -> Table:
    columns = ["ENGINE", "STATE", "EPISODES", "RUNNING", "QUEUED", "KV"] + ["WORKERS"] * wide
    rows = []
    for engine in sorted(engines, key=lambda engine: (engine.state == READY, engine.url)):
        row = [
            Cell(one_line(engine.url, LONGEST_NAME[wide])),
            Cell(one_line(engine.state, 10), STYLES.get(engine.state, "")),
            _number(engine.episodes),
            Cell(_known(engine.running)),
            Cell(_known(engine.queued)),
            Cell(NONE if engine.token_usage is None else f"{engine.token_usage:.0%}"),
        ]
        rows.append(row + [Cell(str(engine.workers))] * wide)
    return Table("engines", columns, rows)


def _known(value: int | None) -> str:
    return NONE if value is None else str(value)


def _workers(fleet: FleetSnapshot, wide: bool) -> Table:
    """The workers, those in trouble first."""
    columns = ["WORKER", "SEEN", "PLAYS", "TURNS/S", "ENGINE", "WAIT FOR"] + [
        "TOKENS/S",
        "QUEUES",
    ] * wide
    lost = [
        [
            Cell(one_line(name, LONGEST_NAME[wide]), BAD),
            Cell(f"{age(seconds)} ago", BAD),
            *[Cell(NONE)] * 3,
            Cell("gone", BAD),
        ]
        for name, seconds in sorted(fleet.lost.items())
    ]
    order = sorted(
        fleet.workers,
        key=lambda worker: (worker.age_s < SILENT_S, worker.engine != AWAY, worker.name),
    )
    rows = [row + [Cell(NONE)] * 2 * wide for row in lost] + [
        _worker(worker, wide) for worker in order
    ]
    return Table("workers", columns, rows)


def _worker(worker: LiveWorker, wide: bool) -> list[Cell]:
    silent = worker.age_s >= SILENT_S
    row = [
        Cell(one_line(worker.name, LONGEST_NAME[wide])),
        Cell(f"{worker.age_s:.0f}s ago", BAD if silent else ""),
        Cell(f"{worker.busy} of {worker.slots}", SLOW if worker.busy >= worker.slots else ""),
        Cell(f"{worker.turns_s:.1f}"),
        Cell(one_line(worker.engine, 10), STYLES.get(worker.engine, "")),
        Cell(_waits(worker)),
    ]
    return (
        row
        + [
            Cell(f"{worker.tokens_s:,.0f}"),
            Cell(one_line(",".join(worker.queues), LONGEST_NAME[False])),
        ]
        * wide
    )


def _waits(worker: LiveWorker) -> str:
    """Waits of its episodes, and the longest of them."""
    if not worker.waits:
        return NONE
    longest = max(worker.waits, key=lambda wait: wait.seconds)
    return (
        f"{_counts(Counter(_short(wait.what for wait in worker.waits)))}, {age(longest.seconds)} "
        "at most"
    )


def _short(whats: Iterable[str]) -> Iterable[str]:
    """The calls of an environment by their kind."""
    return (what.partition("(")[0].partition(".")[0] for what in whats)
