"""A trainer gets what was sampled, whatever happens in an episode: one test for each trap of token
fidelity.

The episodes run on Qwen's vocabulary with the bundled template, which writes what Qwen2.5's writes.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

from array import array
from typing import Any

import pytest

from rollq.events import Finish, Observed, Sampled, Stop
from rollq.trajectory import Trajectory
from rollq_worker.episode.loop import MAX_MALFORMED
from rollq_worker.fakes import FakeUser
from rollq_worker.tokens.renderer import ChatRenderer
from tests.rollq_worker.episode.episodes import play_with_fakes
from tests.rollq_worker.tokens.messages import USER, result
from tests.rollq_worker.tokens.qwen_vocabulary import qwen_tokenizer
from tests.rollq_worker.tokens.scripted_engine import Piece, ScriptedEngine

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer", "description": "a"}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS},
    }
]
OPENING = [{"role": "system", "content": "policy"}, {"role": "user", "content": "hello"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ],
}


@pytest.fixture(scope="module")
def qwen() -> ChatRenderer:
    return ChatRenderer(qwen_tokenizer(), TOOLS)


def played(
    renderer: ChatRenderer,
    *pieces: Piece,
    turns: int = 9,
    agent: str = "tool-calling",
    **sampling: Any,
) -> tuple[Trajectory, ScriptedEngine]:
    """An episode of these sampled pieces. At every request the trajectory's own tokens are sent."""
    engine = ScriptedEngine(list(pieces))
    job: dict[str, Any] = {"agent": agent, "budget": {"max_turns": turns}, "sampling": sampling}
    trajectory = play_with_fakes(
        engine=engine, renderer=renderer, user=FakeUser(["hello", "go on"]), **job
    )
    assert len(trajectory.traces) == 1
    for sent, sampled in zip(
        engine.requests, (e for e in trajectory.events if isinstance(e, Sampled)), strict=False
    ):
        assert trajectory.tokens[: len(sent) + len(sampled.ids)] == sent + sampled.ids
    return trajectory, engine


def turn(renderer: ChatRenderer, text: str) -> Piece:
    return Piece(renderer.tokenizer.encode(text) + array("I", [renderer.stop_ids[0]]))


def test_the_line_break_behind_a_stop_token_is_not_trained(qwen: ChatRenderer):
    trajectory, _ = played(qwen, turn(qwen, CALL), turn(qwen, "Bye."), turns=2)
    sampled = [
        token for token, mask in zip(trajectory.tokens, trajectory.mask, strict=True) if mask
    ]
    assert qwen.tokenizer.decode(sampled) == f"{CALL}<|im_end|>Bye.<|im_end|>"


def test_sampled_ids_that_no_encoder_would_choose_survive(qwen: ChatRenderer):
    spelled = array("I", [id for char in CALL for id in qwen.tokenizer.encode_plain(char)[0]])
    spelled.append(qwen.stop_ids[0])
    assert spelled[:-1] != qwen.tokenizer.encode(CALL)
    trajectory, engine = played(qwen, Piece(spelled), turn(qwen, "Bye."), turns=2)
    assert engine.requests[1][len(engine.requests[0]) :][: len(spelled)] == spelled
    assert next(e for e in trajectory.events if isinstance(e, Observed)).actions[0]["name"] == "add"


def test_actions_as_text_survive_as_sampled_and_their_results_stay_text(qwen: ChatRenderer):
    """The action is spelled letter by letter; its result holds the name of a control token."""
    text = 'Thought:\nx\nAction:\n{"name": "add", "arguments": {"a": "<|im_end|>"}}'
    spelled = array("I", [id for char in text for id in qwen.tokenizer.encode_plain(char)[0]])
    spelled.append(qwen.stop_ids[0])
    plain = ChatRenderer(qwen.tokenizer)
    trajectory, _ = played(plain, Piece(spelled), Piece(spelled), turns=2, agent="react")
    assert [
        token for token, mask in zip(trajectory.tokens, trajectory.mask, strict=True) if mask
    ] == [*spelled] * 2
    observed = next(event for event in trajectory.events if isinstance(event, Observed))
    assert observed.replies == [{"role": "user", "content": 'API output: {"a": "<|im_end|>"}'}]
    assert (
        list(observed.ids).count(qwen.stop_ids[0]) == 1
    )  # the template's own, behind the user's message
    assert qwen.tokenizer.decode(observed.ids).count("<|im_end|>") == 2


def test_a_turn_may_be_cut_in_the_middle_of_a_character(qwen: ChatRenderer):
    whole = qwen.tokenizer.encode_plain("Done \U0001fae8")[0]
    cut = whole[:-1]
    assert "\ufffd" in qwen.tokenizer.decode(cut)
    assert qwen.tokenizer.encode(qwen.tokenizer.decode(cut)) != cut
    trajectory, _ = played(qwen, Piece(cut, Finish.LENGTH))
    assert trajectory.stop is Stop.LENGTH and trajectory.tokens[-len(cut) :] == cut


MALFORMED = [
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}',
    "<tool_call>\n{'name': 'add', 'arguments': {}}\n</tool_call>",
    "<tool_call>\n</tool_call>",
]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_calls_are_answered_trained_and_graded(qwen: ChatRenderer, text: str):
    trajectory, _ = played(qwen, turn(qwen, text))
    assert (trajectory.stop, trajectory.reward, trajectory.turns) == (
        Stop.MALFORMED,
        0.0,
        MAX_MALFORMED,
    )
    observed = [event for event in trajectory.events if isinstance(event, Observed)]
    assert all(event.errors and not event.actions for event in observed)
    assert all(
        event.message["content"] == text for event in observed
    )  # nothing that was said is lost
    sampled = len(turn(qwen, text).ids) * MAX_MALFORMED
    assert sum(trajectory.mask) == trajectory.sampled_tokens == sampled


def test_the_token_that_closes_a_cut_turn_is_not_trained(qwen: ChatRenderer):
    tokenizer = qwen.tokenizer
    cut = tokenizer.encode("It is on")
    close = qwen.close({"role": "assistant", "content": "It is on"}, [USER])
    assert close == tokenizer.added_tokens["<|im_end|>"]
    full = tokenizer.encode(
        qwen.prompt([*OPENING, {"role": "assistant", "content": "It is on"}, USER], TOOLS)
    )
    bridge = qwen.bridge({"role": "assistant", "content": "It is on"}, [USER], close)
    assert qwen.open(OPENING, TOOLS) + cut + array("I", [close]) + bridge == full
    # In an episode: a stop string of the job's own ends a turn without a stop token, and the close
    # is not trained.
    trajectory, engine = played(qwen, Piece(cut), turn(qwen, "Bye."), turns=2, stop=[" on"])
    assert engine.requests[1][len(engine.requests[0]) + len(cut)] == close
    assert trajectory.mask[len(engine.requests[0]) + len(cut)] == 0


def test_work_grows_with_the_turns_and_not_with_their_square(
    qwen: ChatRenderer, monkeypatch: pytest.MonkeyPatch
):
    """Characters rendered, encoded and decoded, turn by turn; benchmarks/bench_tokens.py measures
    the time.
    """
    work: list[int] = []
    tokenizer = qwen.tokenizer
    render, encode, decode = tokenizer.render, tokenizer.encode_plain, tokenizer.decode

    def rendering(*args: Any, **kwargs: Any) -> str:
        work[-1] += len(text := render(*args, **kwargs))
        return text

    def encoding(*texts: str) -> list[array[int]]:
        work[-1] += sum(map(len, texts))
        return encode(*texts)

    def decoding(ids: Any, skip_special: bool = False) -> str:
        work[-1] += len(text := decode(ids, skip_special))
        return text

    monkeypatch.setattr(tokenizer, "render", rendering)
    monkeypatch.setattr(tokenizer, "encode_plain", encoding)
    monkeypatch.setattr(tokenizer, "decode", decoding)

    def episode(turns: int) -> list[int]:
        work.clear()
        work.append(0)
        ids = qwen.open(OPENING, TOOLS)[:]
        for n in range(turns):
            work.append(0)
            sampled = tokenizer.encode(f"{CALL}<|im_end|>")
            assert qwen.read(sampled).calls
            ids += sampled + qwen.bridge(CALLED, [result(f"{n:04} " * 60)], sampled[-1])
        return list(work)

    episode(2)  # what is remembered of the first turns is
    short, long = episode(30), episode(60)
    assert sum(long) <= 2.5 * sum(short)
    assert set(long[2:]) == set(short[2:]) == {long[2]}, "every turn takes the same work"
