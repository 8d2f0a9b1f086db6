"""Images in an episode: by reference in messages, all of them in every request, their files beside
the journal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rollq.env import Action, Image, Observation, User
from rollq.errors import ContractError, EnvironmentFailure, JobFailure
from rollq.events import Event, Observed, Prompt, Sampled, Stop
from rollq.images import IMAGES, ImageRef, images_by_hash, images_of_segments, references, text_of
from rollq.job import History
from rollq.trajectory import Trajectory
from rollq.wire.codec import read_trajectory
from rollq.wire.events import encode_event
from rollq.wire.extras import decode_extra, encode_extra
from rollq_worker.episode import images
from rollq_worker.failures import Diverged
from rollq_worker.fakes import FakeEngine, FakeEnvironment, FakeJournal, FakeRenderer, FakeUser
from tests.rollq_worker.episode.episodes import CALL, TWO_CALLS, play_with_fakes, run
from tests.rollq_worker.pictures import image

PIXEL = chr(FakeRenderer.image_token)
ONE, TWO, THREE = image(2, 3), image(4, 1), image(3, 3)


@dataclass
class Gallery(FakeEnvironment):
    """Shows one image at the start and the next one for each call."""

    shown: Sequence[Any] = (ONE, TWO, THREE)
    rest: list[Any] = field(default_factory=list)

    def reset(self, user: User) -> Observation:
        first, *self.rest = self.shown
        return Observation(super().reset(user), images=[first])

    def step(self, action: Action) -> Observation:
        found = super().step(action)
        more = [self.rest.pop(0)] if self.rest and action.name == "add" else []
        return Observation(found.text, found.done, images=more)


def kept(trajectory: Trajectory) -> list[ImageRef]:
    return references(trajectory.messages)


class TestRequests:
    def test_each_carries_all_images_so_far(self) -> None:
        engine = FakeEngine([CALL, "done"])
        trajectory = run(engine=engine, environment=Gallery())
        assert [list(sent.images) if sent else [] for sent in engine.images] == [[ONE], [ONE, TWO]]
        assert [ids.count(FakeRenderer.image_token) for ids in engine.requests] == [6, 6 + 4]
        assert trajectory.stop is Stop.DONE

    def test_text_alone_carries_none(self) -> None:
        engine = FakeEngine([CALL, "done"])
        trajectory = run(engine=engine)
        assert engine.images == [None, None] and not trajectory.extras

    def test_several_calls_show_theirs_in_order(self) -> None:
        engine = FakeEngine([TWO_CALLS, "done"])
        run(engine=engine, environment=Gallery(), agent_args={"calls": "all"})
        assert engine.images[-1] is not None and list(engine.images[-1].images) == [ONE, TWO, THREE]

    def test_a_trace_behind_a_shortened_conversation_carries_those_that_it_shows(self) -> None:
        engine = FakeEngine([CALL, CALL, "done"])
        window = {"kind": "window", "over": 150, "turns": 1}
        trajectory = play_with_fakes(engine=engine, environment=Gallery(), context=window)
        assert [list(sent.images) if sent else [] for sent in engine.images] == [
            [ONE],
            [ONE, TWO],
            [ONE, THREE],
        ]
        assert [ids.count(FakeRenderer.image_token) for ids in engine.requests] == [6, 6 + 4, 6 + 9]
        assert images_of_segments(trajectory) == [[ONE.data, TWO.data], [ONE.data, THREE.data]]

    def test_an_iterator_of_images_is_shown_too(self) -> None:
        class Lazy(FakeEnvironment):
            def reset(self, user: User) -> Observation:
                shown: Any = (one for one in [ONE, TWO])
                return Observation(super().reset(user), images=shown)

        trajectory = play_with_fakes("done", environment=Lazy())
        assert kept(trajectory) == [ONE.reference, TWO.reference]

    def test_equal_images_are_in_memory_once(self) -> None:
        engine = FakeEngine([CALL, "done"])
        run(engine=engine, environment=Gallery(shown=(ONE, image(2, 3))))
        assert engine.images[-1] is not None
        first, again = engine.images[-1].images
        assert first is again

    def test_a_placeholder_that_the_policy_sampled_ends_the_episode(self) -> None:
        engine = FakeEngine([f"I see {PIXEL}", "more"])
        user = FakeUser(("hello", "go on"))
        trajectory = play_with_fakes(engine=engine, environment=Gallery(), user=user)
        assert (
            trajectory.stop is Stop.LENGTH
            and trajectory.reward == 0.0
            and len(engine.requests) == 1
        )

    def test_without_images_it_is_a_token_like_others(self) -> None:
        assert run(f"I see {PIXEL}", CALL, "done").stop is Stop.DONE


class TestJournal:
    def test_it_has_references_and_no_bytes(self) -> None:
        journal = FakeJournal()
        trajectory = play_with_fakes(CALL, "done", environment=Gallery(), journal=journal)
        assert kept(trajectory) == [ONE.reference, TWO.reference]
        prompt = journal.events[0]
        assert isinstance(prompt, Prompt)
        assert prompt.messages[-1]["content"] == [
            {"type": "text", "text": "hello"},
            ONE.reference.part,
        ]
        assert text_of(prompt.messages[-1]["content"]) == "hello"
        replies = next(event.replies for event in journal.events if isinstance(event, Observed))
        assert replies[0]["content"][1] == TWO.reference.part

    @pytest.mark.parametrize("events", [1, 2, 3, 4])
    def test_an_episode_is_resumed_after_any_event(self, events: int) -> None:
        whole = play_with_fakes(CALL, "done", environment=Gallery())
        engine = FakeEngine(
            [CALL, "done"][sum(isinstance(event, Sampled) for event in whole.events[:events]) :]
        )
        resumed = play_with_fakes(
            engine=engine, environment=Gallery(), recorded=whole.events[:events]
        )
        assert resumed.tokens == whole.tokens and resumed.extras == whole.extras

    def test_another_image_is_a_divergence(self) -> None:
        whole = play_with_fakes(CALL, "done", environment=Gallery())
        with pytest.raises(Diverged, match=r"Observed\.replies"):
            play_with_fakes(
                "done",
                environment=Gallery(shown=(ONE, image(4, 1, seed=1))),
                recorded=whole.events[:3],
            )


class TestFiles:
    def test_each_is_kept_once_and_found_by_its_hash(self) -> None:
        trajectory = play_with_fakes(CALL, CALL, "done", environment=Gallery(shown=(ONE, TWO, ONE)))
        assert trajectory.extras[IMAGES].data == ONE.data + TWO.data
        assert images_by_hash(trajectory) == {
            ONE.reference.sha256: ONE.data,
            TWO.reference.sha256: TWO.data,
        }
        assert images_of_segments(trajectory) == [[ONE.data, TWO.data, ONE.data]]

    def test_the_wire_gives_them_back(self) -> None:
        played = play_with_fakes(CALL, "done", environment=Gallery())
        events = [encode_event(event, "r/g/0") for event in played.events]
        extras = {IMAGES: decode_extra(encode_extra(played.extras[IMAGES], "x"), "x")}
        read = replace(read_trajectory(played.job, played.header, events), extras=extras)
        assert images_of_segments(read) == images_of_segments(played) == [[ONE.data, TWO.data]]

    def test_rows_have_the_images_of_their_own_trace(self) -> None:
        user = FakeUser(("hello", "and then?"))
        texts = (CALL, "what else?", CALL, "done")
        trajectory = play_with_fakes(
            *texts, environment=Gallery(), user=user, history=History.TEMPLATE
        )
        rows, files = trajectory.segments(), images_of_segments(trajectory)
        assert [len(shown) for shown in files] == [2, 3]
        for row, shown in zip(rows, files, strict=True):
            tokens = row.prompt_ids + row.response_ids
            refs = [Image(data).reference for data in shown]
            assert tokens.count(FakeRenderer.image_token) == sum(
                ref.width * ref.height for ref in refs
            )

    def test_a_trainer_that_did_not_ask_is_told_how(self) -> None:
        played = play_with_fakes(CALL, "done", environment=Gallery())
        without = Trajectory(job=played.job, header=played.header, events=played.events)
        with pytest.raises(ContractError, match=r"take batches with extras=\['images'\]"):
            images_by_hash(without)

    def test_other_bytes_than_the_references_are_found(self) -> None:
        played = play_with_fakes(CALL, "done", environment=Gallery())
        other = play_with_fakes(CALL, "done", environment=Gallery(shown=(TWO, ONE)))
        mixed = Trajectory(
            job=played.job, header=played.header, events=played.events, extras=other.extras
        )
        with pytest.raises(ContractError, match="not that image"):
            images_by_hash(mixed)


class TestRefusals:
    def test_a_model_of_text_fails_the_job(self) -> None:
        class OfText(FakeRenderer):
            def image_length(self, width: int, height: int) -> int:
                raise JobFailure("a model of text")

        with pytest.raises(JobFailure, match="a model of text"):
            play_with_fakes("done", environment=Gallery(), renderer=OfText())

    def test_what_is_no_image(self) -> None:
        with pytest.raises(EnvironmentFailure, match="is a bytes, not an Image"):
            play_with_fakes("done", environment=Gallery(shown=(b"png",)))

    def test_more_than_a_request_may_carry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(images, "MAX_EPISODE_BYTES", ONE.reference.bytes + 1)
        with pytest.raises(EnvironmentFailure, match="show fewer or smaller ones"):
            play_with_fakes(CALL, "done", environment=Gallery())


@pytest.mark.parametrize("events", [0, 3])
def test_the_users_reply_may_show_one(events: int) -> None:
    class Sender(FakeEnvironment):
        def step(self, action: Action) -> Observation:
            found = super().step(action)
            return Observation(found.text, found.done, images=[] if found.done else [ONE])

    def play(*texts: str, recorded: Sequence[Event] = ()) -> Trajectory:
        user = FakeUser(("hello", "like this"))
        return play_with_fakes(*texts, environment=Sender(), user=user, recorded=recorded)

    trajectory = play("hi", "bye")
    if events:
        trajectory = play("bye", recorded=trajectory.events[:events])
    assert trajectory.messages[-3]["content"] == [
        {"type": "text", "text": "like this"},
        ONE.reference.part,
    ]
    assert trajectory.tokens.count(FakeRenderer.image_token) == 6 and trajectory.stop is Stop.DONE
