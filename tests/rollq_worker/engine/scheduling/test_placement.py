"""Which engine an episode plays on, and whether its next turn may begin there."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rollq_worker.engine.scheduling.engine_load import EngineLoad
from rollq_worker.engine.scheduling.placement import FULL, NEVER_FULL, EnginePlacement

URLS = [f"http://engine-{number}" for number in range(4)]
BUSY = EngineLoad(running=10, waiting=10, token_usage=0.9, retracted=0)
IDLE = EngineLoad(running=1, waiting=0, token_usage=0.1, retracted=0)


@dataclass
class Worker:
    """A placement, and what it granted."""

    ceiling: int = 64
    fit: Sequence[str] = tuple(URLS)
    granted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.placement = EnginePlacement(self.ceiling)

    def enter(self, group: str, sample: int = 0) -> tuple[str, bool]:
        episode = f"run/{group}/{sample}"
        return self.placement.enter(episode, f"run/{group}", self.fit, lambda: self.granted.append(episode))

    def leave(self, group: str, sample: int = 0) -> None:
        self.placement.leave(f"run/{group}/{sample}")

    def lower(self, url: str = URLS[0]) -> None:
        self.placement.observe(url, BUSY)

    def raise_to_the_top(self, url: str = URLS[0]) -> None:
        for _ in range(200):
            self.placement.observe(url, IDLE)


class TestWhere:
    def test_siblings_share_an_engine_and_all_workers_choose_alike(self) -> None:
        one, other = Worker(), Worker()
        for group in range(20):
            assert len({worker.enter(f"g{group}", sample) for worker in (one, other) for sample in range(4)}) == 1
            for sample in range(4):
                one.leave(f"g{group}", sample)
                other.leave(f"g{group}", sample)

    def test_no_engine_has_many_more_than_its_share(self) -> None:
        worker = Worker(ceiling=256)
        where = Counter(worker.enter(f"g{group}", sample)[0] for group in range(32) for sample in range(8))
        assert max(where.values()) <= 256 / len(URLS) * FULL + 1

    def test_a_usual_group_stays_together_on_an_empty_fleet(self) -> None:
        assert len({Worker().enter("g", sample) for sample in range(NEVER_FULL)}) == 1

    def test_an_episode_stays_where_it_began(self) -> None:
        worker = Worker()
        url, _ = worker.enter("g")
        worker.fit = [one for one in URLS if one != url]
        moved, _ = worker.enter("g")
        worker.fit = URLS
        assert moved != url and worker.enter("g") == (moved, True)
        assert worker.enter("g", 1) == (url, True)  # a new one goes where its group belongs

    def test_only_the_groups_of_an_engine_that_went_away_move(self) -> None:
        def homes(fit: Sequence[str]) -> dict[int, str]:
            found = {}
            worker = Worker(fit=fit)
            for group in range(40):
                found[group] = worker.enter(f"g{group}")[0]
                worker.leave(f"g{group}")
            return found

        before, after = homes(URLS), homes(URLS[1:])
        assert all(after[group] == url for group, url in before.items() if url != URLS[0])

    def test_an_engine_that_came_back_takes_episodes_from_one_that_has_far_too_many(self) -> None:
        worker = Worker(fit=URLS[:1])
        for group in range(40):
            worker.enter(f"g{group}")
        worker.fit = URLS[:2]
        for group in range(40):
            worker.enter(f"g{group}")
        assert [worker.placement.episodes(url) for url in URLS[:2]] == [40, 0]  # twice the share is not far too many
        worker.fit = URLS
        for group in range(40):
            worker.enter(f"g{group}")
        assert worker.placement.episodes(URLS[0]) == 20


class TestSeats:
    def test_without_a_load_only_the_ceiling_limits(self) -> None:
        worker = Worker(ceiling=3, fit=URLS[:1])
        assert [worker.enter("g", sample)[1] for sample in range(4)] == [True, True, True, False]
        worker.leave("g", 1)
        assert worker.granted == ["run/g/3"] and worker.enter("g", 3) == (URLS[0], True)

    def test_above_a_lowered_limit_episodes_wait_between_turns_and_go_on_first(self) -> None:
        worker = Worker(ceiling=10, fit=URLS[:1])
        assert all(worker.enter("g", sample)[1] for sample in range(10))
        worker.lower()
        assert worker.placement.limit(URLS[0]) == 8
        assert not worker.enter("new")[1]
        assert [worker.enter("g", sample)[1] for sample in range(4)] == [False, False, True, True]
        worker.leave("g", 9)
        worker.leave("g", 8)
        assert worker.granted == ["run/g/0", "run/g/1"]
        worker.leave("g", 7)
        assert worker.granted[2:] == ["run/new/0"]

    def test_a_raised_limit_lets_those_that_wait_in(self) -> None:
        worker = Worker(ceiling=10, fit=URLS[:1])
        for sample in range(10):
            worker.enter("g", sample)
        worker.lower()
        waiting = [sample for sample in range(10) if not worker.enter("g", sample)[1]]
        worker.raise_to_the_top()
        assert worker.granted == [f"run/g/{sample}" for sample in waiting] and len(waiting) == 2

    def test_an_engine_that_stops_telling_its_load_is_not_limited(self) -> None:
        worker = Worker(ceiling=10, fit=URLS[:1])
        for sample in range(10):
            worker.enter("g", sample)
        worker.lower()
        worker.placement.observe(URLS[0], None)
        assert worker.placement.limit(URLS[0]) == 10

    def test_who_waits_moves_to_an_engine_that_has_a_seat(self) -> None:
        worker = Worker(ceiling=2, fit=URLS[:1])
        assert [worker.enter("g", sample)[1] for sample in range(3)] == [True, True, False]
        worker.fit = URLS[:2]
        assert worker.enter("g", 2) == (URLS[1], True)


class Placements(RuleBasedStateMachine):
    """Episodes come, wait, go on and end in any order, while engines come, go, and tell any load."""

    def __init__(self) -> None:
        super().__init__()
        self.placement = EnginePlacement(8)
        self.playing: set[str] = set()
        """May be in a turn."""
        self.waiting: set[str] = set()
        self.where: dict[str, str] = {}

    @rule(group=st.integers(0, 5), sample=st.integers(0, 7), fit=st.sets(st.sampled_from(URLS), min_size=1))
    def enter(self, group: int, sample: int, fit: set[str]) -> None:
        episode = f"run/{group}/{sample}"

        def granted() -> None:
            assert episode in self.waiting
            self.waiting.discard(episode)
            self.playing.add(episode)

        self.playing.discard(episode)
        self.waiting.add(episode)  # the last call's turn is over
        url, now = self.placement.enter(episode, f"run/{group}", sorted(fit), granted)
        assert url in fit
        self.where[episode] = url
        if now:
            self.waiting.discard(episode)
            self.playing.add(episode)

    @rule(group=st.integers(0, 5), sample=st.integers(0, 7))
    def leave(self, group: int, sample: int) -> None:
        episode = f"run/{group}/{sample}"
        for known in (self.playing, self.waiting):
            known.discard(episode)
        self.where.pop(episode, None)
        self.placement.leave(episode)

    @rule(url=st.sampled_from(URLS), load=st.sampled_from([BUSY, IDLE, None]))
    def look(self, url: str, load: EngineLoad | None) -> None:
        self.placement.observe(url, load)

    @invariant()
    def counts_agree(self) -> None:
        where = Counter(self.where.values())
        assert all(self.placement.episodes(url) == where[url] for url in URLS)

    @invariant()
    def nothing_waits_at_an_engine_that_has_seats(self) -> None:
        playing = Counter(self.where[episode] for episode in self.playing)
        for episode in self.waiting:
            assert playing[self.where[episode]] >= self.placement.limit(self.where[episode])

    @invariant()
    def never_more_than_the_ceiling(self) -> None:
        assert max(Counter(self.where[episode] for episode in self.playing).values(), default=0) <= 8


TestPlacements = Placements.TestCase
TestPlacements.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
