"""Which engine an episode plays on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rollq_worker.engine.scheduling.placement import FULL, NEVER_FULL, EnginePlacement

URLS = [f"http://engine-{number}" for number in range(4)]


@dataclass
class Worker:
    """A placement, and the engines that are up."""

    fit: Sequence[str] = tuple(URLS)
    placement: EnginePlacement = field(default_factory=EnginePlacement)

    def enter(self, group: str, sample: int = 0) -> str:
        return self.placement.enter(f"run/{group}/{sample}", f"run/{group}", self.fit)

    def leave(self, group: str, sample: int = 0) -> None:
        self.placement.leave(f"run/{group}/{sample}")


class TestWhere:
    def test_siblings_share_an_engine_and_all_workers_choose_alike(self) -> None:
        one, other = Worker(), Worker()
        for group in range(20):
            assert (
                len(
                    {
                        worker.enter(f"g{group}", sample)
                        for worker in (one, other)
                        for sample in range(4)
                    }
                )
                == 1
            )
            for sample in range(4):
                one.leave(f"g{group}", sample)
                other.leave(f"g{group}", sample)

    def test_no_engine_has_many_more_than_its_share(self) -> None:
        worker = Worker()
        where = Counter(
            worker.enter(f"g{group}", sample) for group in range(32) for sample in range(8)
        )
        assert max(where.values()) <= 256 / len(URLS) * FULL + 1

    def test_a_usual_group_stays_together_on_an_empty_fleet(self) -> None:
        assert len({Worker().enter("g", sample) for sample in range(NEVER_FULL)}) == 1

    def test_an_episode_stays_where_it_began(self) -> None:
        worker = Worker()
        url = worker.enter("g")
        worker.fit = [one for one in URLS if one != url]
        moved = worker.enter("g")
        worker.fit = URLS
        assert moved != url and worker.enter("g") == moved
        assert worker.enter("g", 1) == url  # a new one goes where its group belongs

    def test_only_the_groups_of_an_engine_that_went_away_move(self) -> None:
        def homes(fit: Sequence[str]) -> dict[int, str]:
            found = {}
            worker = Worker(fit=fit)
            for group in range(40):
                found[group] = worker.enter(f"g{group}")
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
        assert [worker.placement.episodes(url) for url in URLS[:2]] == [
            40,
            0,
        ]  # twice the share is not far too many
        worker.fit = URLS
        for group in range(40):
            worker.enter(f"g{group}")
        assert worker.placement.episodes(URLS[0]) == 20


class Placements(RuleBasedStateMachine):
    """Episodes come, go on and end in any order, while engines come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.placement = EnginePlacement()
        self.where: dict[str, str] = {}

    @rule(
        group=st.integers(0, 5),
        sample=st.integers(0, 7),
        fit=st.sets(st.sampled_from(URLS), min_size=1),
    )
    def enter(self, group: int, sample: int, fit: set[str]) -> None:
        episode = f"run/{group}/{sample}"
        self.where[episode] = self.placement.enter(episode, f"run/{group}", sorted(fit))
        assert self.where[episode] in fit

    @rule(group=st.integers(0, 5), sample=st.integers(0, 7))
    def leave(self, group: int, sample: int) -> None:
        episode = f"run/{group}/{sample}"
        self.where.pop(episode, None)
        self.placement.leave(episode)

    @invariant()
    def counts_agree(self) -> None:
        where = Counter(self.where.values())
        assert all(self.placement.episodes(url) == where[url] for url in URLS)


TestPlacements = Placements.TestCase
TestPlacements.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
