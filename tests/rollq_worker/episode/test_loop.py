"""The agent loop against the fakes: what is sent, what is recorded, how it ends."""

from array import array

import pytest

from rollq import errors
from rollq.job import Budget, History, Job
from rollq.trajectory import Closed, Finish, Observed, Prompt, Sampled, Stop, Trajectory, VersionSpan
from rollq_worker.episode.loop import MAX_MALFORMED, play
from rollq_worker.failures import DeadlineExceeded
from rollq_worker.fakes import END, FakeEngine, FakeEnvironment, FakeJournal, FakeRenderer, FakeUser, spell
from rollq_worker.protocols import STOP_MARKER, Action, Generated, Grade, Observation, ReadTurn

CALL = '{"name": "add", "arguments": {"a": 1}}'


def run(*texts, budget=None, engine=None, environment=None, user=None, journal=None, **job):
    engine = engine or FakeEngine(texts)
    trajectory = play(
        Job(run="r", group="g", env="fake", task=0, budget=Budget(**(budget or {})), **job),
        engine=engine,
        renderer=FakeRenderer(),
        environment=environment or FakeEnvironment(),
        user=user or FakeUser(),
        journal=journal or FakeJournal(),
    )
    check_tokens(trajectory, engine)
    return trajectory


def check_tokens(trajectory: Trajectory, engine: FakeEngine) -> None:
    """The trajectory is, id for id, what the engine was sent plus what it returned; every request extends the last."""
    sent, said = engine.requests, engine.replies
    for before, reply, after in zip(sent, said, sent[1:], strict=False):
        assert after[: len(before) + len(reply)] == before + reply
    assert trajectory.tokens == sent[-1] + said[-1]
    sampled = [t for t, m in zip(trajectory.tokens, trajectory.mask, strict=True) if m]
    assert sampled == [t for reply in said for t in reply]
    assert len(trajectory.tokens) == len(trajectory.logprobs) == len(trajectory.versions) == sum(trajectory.traces)
    assert [v is not None for v in trajectory.versions] == [bool(m) for m in trajectory.mask]
    assert all(lp == 0.0 for lp, m in zip(trajectory.logprobs, trajectory.mask, strict=True) if not m)


def test_a_call_then_a_farewell():
    trajectory = run(CALL, "done, bye")
    assert [type(e) for e in trajectory.events] == [Prompt, Sampled, Observed, Sampled, Observed, Closed]
    assert (trajectory.stop, trajectory.reward, trajectory.turns) == (Stop.DONE, 1.0, 2)
    assert [m["role"] for m in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert trajectory.messages[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert trajectory.messages[-1]["content"] == STOP_MARKER
    assert "".join(map(chr, trajectory.tokens)) == (
        "[system]policy[user]hello[assistant]" + CALL + chr(END) + '[tool]{"a": 1}[assistant]' + "done, bye" + chr(END)
    )


def test_every_event_but_the_last_is_journaled_before_it_counts():
    journal = FakeJournal()
    trajectory = run(CALL, "bye", journal=journal)
    assert journal.events == list(trajectory.events[:-1])


def test_the_turn_budget_ends_it_ungraded_by_the_environment():
    trajectory = run(CALL, budget={"max_turns": 3})
    assert (trajectory.stop, trajectory.reward, trajectory.turns) == (Stop.TURNS, 0.0, 3)
    assert trajectory.events[-2].ids == spell("")  # no bridge to a turn that never comes


def test_a_cut_turn_ends_it():
    trajectory = run(CALL, budget={"max_new_tokens": 5})
    assert (trajectory.stop, trajectory.turns, trajectory.sampled_tokens) == (Stop.LENGTH, 1, 5)
    assert trajectory.events[-2].actions == []


@pytest.mark.parametrize("max_tokens", range(36, 140, 7))
def test_the_token_budget_is_never_exceeded(max_tokens):
    trajectory = run(CALL, budget={"max_tokens": max_tokens}) if max_tokens > 36 else None
    if trajectory:
        assert trajectory.stop is Stop.LENGTH
        assert len(trajectory.tokens) <= max_tokens


@pytest.mark.parametrize(("max_tokens", "context"), [(10, 1000), (1000, 10)])
def test_a_first_prompt_without_room_behind_it_is_no_trajectory(max_tokens, context):
    """A row without a sampled token, graded 0, would say something of the policy."""
    engine = FakeEngine([CALL], context=context)
    with pytest.raises(errors.JobFailure, match=r"the first prompt of \d+ tokens leaves no room"):
        run(CALL, engine=engine, budget={"max_tokens": max_tokens})
    assert engine.requests == []


def test_the_context_of_the_engine_is_a_budget_too():
    assert run(CALL, engine=FakeEngine([CALL], context=90)).stop is Stop.LENGTH


def test_malformed_turns_are_shown_to_the_policy_then_end_it_graded():
    trajectory = run("{oops")
    assert (trajectory.stop, trajectory.reward, trajectory.turns) == (Stop.MALFORMED, 0.0, MAX_MALFORMED)
    assert [m["role"] for m in trajectory.messages[2:]] == ["assistant", "tool"] * 2 + ["assistant"]
    assert trajectory.messages[3]["content"].startswith("Error: not a call")


def test_a_turn_full_of_broken_calls_is_told_of_a_few():
    class Stutterer(FakeRenderer):
        def read(self, ids):
            return ReadTurn("", (), ["cut off."] * 400 + [f"bad {n}." for n in range(400)])

    trajectory = play(
        Job(run="r", group="g", env="fake", task=0),
        engine=FakeEngine(["{" * 400]),
        renderer=Stutterer(),
        environment=FakeEnvironment(),
        user=FakeUser(),
        journal=FakeJournal(),
    )
    assert trajectory.messages[3]["content"] == "Error: cut off. bad 0. bad 1. bad 2. bad 3."
    assert trajectory.stop is Stop.MALFORMED


def test_a_good_turn_forgives_malformed_ones():
    assert run("{oops", "{oops", CALL, "{oops", "{oops", "bye").stop is Stop.DONE


def test_a_tool_call_named_respond_does_not_speak_to_the_user():
    user = FakeUser()
    trajectory = run('{"name": "respond", "arguments": {}}', "bye", user=user)
    assert user.heard == ["bye"]
    assert "no tool named" in trajectory.messages[3]["content"]


def test_an_interrupted_generation_goes_on_from_its_partial_ids():
    trajectory = run(CALL, "bye", engine=FakeEngine([CALL, "bye"], interrupts=2))
    sampled = [e for e in trajectory.events if isinstance(e, Sampled)]
    assert [e.finish for e in sampled] == [Finish.ABORT, Finish.ABORT, Finish.STOP, Finish.STOP]
    assert (trajectory.turns, trajectory.stop) == (2, Stop.DONE)


def test_a_turn_that_hands_over_to_the_wrong_speaker_is_malformed():
    """As with GLM, whose stop tokens are the headers of who speaks next."""

    class OnlyUsers(FakeRenderer):
        roles = frozenset({"user"})

        def complaint_role(self, stop):
            return "user"

    environment = FakeEnvironment()
    trajectory = play(
        Job(run="r", group="g", env="fake", task=0),
        engine=FakeEngine([CALL]),
        renderer=OnlyUsers(),
        environment=environment,
        user=FakeUser(),
        journal=FakeJournal(),
    )
    assert (trajectory.stop, environment.actions) == (Stop.MALFORMED, [])
    assert trajectory.messages[3]["role"] == "user"
    assert "somebody else" in trajectory.messages[3]["content"]


TWO = '[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a": 2}}]'


def test_of_several_calls_the_first_is_carried_out_and_the_others_counted():
    environment = FakeEnvironment()
    trajectory = run(TWO, "bye", environment=environment)
    assert [dict(a.arguments) for a in environment.actions[:-1]] == [{"a": 1}]
    observed = trajectory.events[2]
    assert (len(observed.actions), observed.extra_calls, len(observed.replies)) == (1, 1, 1)


def test_all_calls_of_a_turn_when_the_job_says_so():
    environment = FakeEnvironment()
    trajectory = run(TWO, "bye", environment=environment, agent_args={"calls": "all"})
    assert [dict(a.arguments) for a in environment.actions[:-1]] == [{"a": 1}, {"a": 2}]
    assert [m["role"] for m in trajectory.messages[2:5]] == ["assistant", "tool", "tool"]
    ids = [call["id"] for call in trajectory.messages[2]["tool_calls"]]
    assert ids == [m["tool_call_id"] for m in trajectory.messages[3:5]]
    assert len(set(ids)) == 2
    assert trajectory.events[2].extra_calls == 0


def test_several_calls_refused_are_malformed():
    environment = FakeEnvironment()
    trajectory = run(TWO, environment=environment, agent_args={"calls": "refuse"})
    assert (trajectory.stop, environment.actions) == (Stop.MALFORMED, [])
    assert "one at a time" in trajectory.messages[3]["content"]


def test_history_by_the_template_opens_a_trace_where_it_rewrites():
    """The fake template rewrites whenever the user speaks."""
    engine = FakeEngine([CALL, "and?", CALL, "bye"])
    trajectory = play(
        Job(run="r", group="g", env="fake", task=0, history=History.TEMPLATE),
        engine=engine,
        renderer=FakeRenderer(),
        environment=FakeEnvironment(),
        user=FakeUser(["hello", "go on"]),
        journal=FakeJournal(),
    )
    assert len(trajectory.traces) == 2
    assert sum(trajectory.traces) == len(trajectory.tokens)
    first, second = trajectory.tokens[: trajectory.traces[0]], trajectory.tokens[trajectory.traces[0] :]
    assert first == engine.requests[1] + engine.replies[1]
    assert second == engine.requests[3] + engine.replies[3]
    assert trajectory.sampled_tokens == sum(map(len, engine.replies)) == sum(trajectory.mask)
    assert [m["role"] for m in trajectory.messages] == (
        ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant", "user"]
    )


class Broken(FakeEnvironment):
    def step(self, action: Action) -> Observation:
        raise ValueError


class BadGrade(FakeEnvironment):
    def grade(self) -> Grade:
        return Grade(float("nan"))


class BadInfo(FakeEnvironment):
    def grade(self) -> Grade:
        return Grade(1.0, {"seen": {1, 2}})


class NoPolicy(FakeEnvironment):
    def __init__(self) -> None:
        super().__init__(system_prompt=None)  # type: ignore[arg-type]


class NoOpening(FakeEnvironment):
    def reset(self, user):
        self.user = user


class NoText(FakeEnvironment):
    def step(self, action: Action) -> Observation:
        return Observation(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "environment", [Broken(), BadGrade(), BadInfo(), NoPolicy(), NoOpening(), NoText()], ids=lambda e: type(e).__name__
)
def test_what_the_environment_breaks_is_its_own_failure(environment):
    with pytest.raises(errors.EnvironmentFailure):
        run("bye", environment=environment)


class FlakyUser(FakeUser):
    def reply(self, message: str) -> str:
        raise errors.UserFailure("user endpoint is down")


def test_a_user_failure_stays_a_user_failure():
    with pytest.raises(errors.UserFailure, match="down"):
        run("hi", user=FlakyUser())


class DeadEngine(FakeEngine):
    def generate(self, *args, **kwargs):
        raise ConnectionResetError


class SlowEngine(FakeEngine):
    def generate(self, *args, **kwargs):
        raise DeadlineExceeded("past the deadline of 1 s")


@pytest.mark.parametrize("engine", [DeadEngine([""]), SlowEngine([""])], ids=lambda e: type(e).__name__)
def test_what_the_engine_breaks_is_an_engine_failure(engine):
    with pytest.raises(errors.EngineFailure):
        run(engine=engine)


def test_check_stops_the_episode_between_turns():
    journal = FakeJournal(stop=errors.Fenced("r/g/0"), limit=3)
    with pytest.raises(errors.Fenced):
        run(CALL, journal=journal)
    assert len(journal.events) == 3


@pytest.mark.parametrize(
    "job",
    [
        {"agent": "telepathy"},
        {"agent_args": {"single": 1}},
        *({"agent_args": {"calls": calls}} for calls in ("some", None, ["all"], {})),
    ],
)
def test_an_unknown_strategy_is_the_jobs_fault(job):
    with pytest.raises(errors.JobFailure, match=r"telepathy|single_tool"):
        run("hi", **job)


def test_the_single_tool_instruction_is_part_of_the_prompt():
    trajectory = run("bye", agent_args={"single_tool": True})
    assert "exactly one tool call" in trajectory.messages[0]["content"]


class Pieces(FakeEngine):
    """Replies with these texts and finishes, and remembers how it was to sample."""

    def __init__(self, *pieces: tuple[str, Finish]) -> None:
        super().__init__(["unused"])
        self.pieces = list(pieces)
        self.asked: list[tuple[dict, int]] = []

    def generate(self, ids, *, sampling, max_new_tokens, key, check):
        self.requests.append(ids[:])
        self.asked.append((dict(sampling), max_new_tokens))
        text, finish = self.pieces.pop(0)
        out = spell(text)
        self.replies.append(out)
        logprobs = array("f", [-0.5] * len(out))
        return Generated(ids=out, logprobs=logprobs, versions=[VersionSpan("v", 0, len(out))], finish=finish)


END_TEXT = chr(END)


def test_a_turn_ended_by_a_stop_string_is_closed_with_the_templates_token():
    class Closes(FakeRenderer):
        def is_end(self, id):
            return id in (END, ord("#"))

        def close(self, message, replies):
            return ord("#")

    engine = Pieces(("hm STOP", Finish.STOP), ("hm#", Finish.STOP), ("bye" + END_TEXT, Finish.STOP))
    trajectory = play(
        Job(run="r", group="g", env="fake", task=0, sampling={"stop": ["STOP", "#"]}),
        engine=engine,
        renderer=Closes(),
        environment=FakeEnvironment(),
        user=FakeUser(["hello", "go on", "well?"]),
        journal=FakeJournal(),
    )
    check_tokens(trajectory, engine)
    assert (trajectory.stop, trajectory.turns) == (Stop.DONE, 3)
    assert "".join(map(chr, trajectory.events[2].ids)) == "#[user]go on[assistant]"
    assert "".join(map(chr, trajectory.events[4].ids)) == "[user]well?[assistant]"  # a close of its own is enough


def test_what_was_sampled_of_a_turn_counts_for_its_least_length():
    engine = Pieces(("12345", Finish.ABORT), ("", Finish.ABORT), ("678", Finish.ABORT), ("9" + END_TEXT, Finish.STOP))
    run(engine=engine, sampling={"min_new_tokens": 7}, budget={"max_turns": 1, "max_new_tokens": 20})
    assert [(asked["min_new_tokens"], room) for asked, room in engine.asked] == [(7, 20), (2, 15), (2, 15), (0, 12)]


@pytest.mark.parametrize(("seed", "sample", "asked"), [(5, 0, 5), (5, 3, 8), (2**63 - 1, 1, 0)])
def test_the_samples_of_a_group_do_not_share_their_seed(seed: int, sample: int, asked: int):
    engine = Pieces(("1" + END_TEXT, Finish.STOP))
    run(engine=engine, sampling={"sampling_seed": seed}, budget={"max_turns": 1}, size=4, sample=sample)
    assert [sampling["sampling_seed"] for sampling, _ in engine.asked] == [asked]


def test_an_abort_at_a_stop_token_ends_the_turn_unless_the_job_ignores_those():
    engine = Pieces(("12" + END_TEXT, Finish.ABORT))
    assert run(engine=engine).stop is Stop.DONE
    engine = Pieces(("12" + END_TEXT, Finish.ABORT), ("34" + END_TEXT + "5" + END_TEXT, Finish.LENGTH))
    trajectory = run(engine=engine, sampling={"ignore_eos": True}, budget={"max_turns": 2})
    assert (trajectory.stop, trajectory.turns) == (Stop.LENGTH, 1)
    assert [len(e.ids) for e in trajectory.events if isinstance(e, Sampled)] == [3, 5]


def test_an_abort_at_the_jobs_own_stop_token_ends_the_turn():
    engine = Pieces(("12#", Finish.ABORT), ("bye" + END_TEXT, Finish.STOP))
    trajectory = run(engine=engine, sampling={"stop_token_ids": [ord("#")]}, user=FakeUser(["hello", "go on"]))
    assert (trajectory.stop, trajectory.turns) == (Stop.DONE, 2)


def test_a_turn_under_a_grammar_is_sampled_anew_when_it_is_interrupted():
    """The engine would begin the grammar anew in its middle."""
    engine = Pieces(('{"a', Finish.ABORT), ("", Finish.ABORT), ('{"a": 1}', Finish.STOP))
    trajectory = play(
        Job(run="r", group="g", env="fake", task=0, sampling={"json_schema": "{}"}, budget=Budget(max_turns=1)),
        engine=engine,
        renderer=FakeRenderer(),
        environment=FakeEnvironment(),
        user=FakeUser(),
        journal=FakeJournal(),
    )
    assert engine.requests[0] == engine.requests[1] == engine.requests[2]
    assert [(e.ids, e.finish) for e in trajectory.events if isinstance(e, Sampled)] == [
        (spell('{"a": 1}'), Finish.STOP)
    ]


def test_calls_keep_the_ids_that_the_model_gave_them():
    texts = [
        '[{"id": "x1", "name": "add", "arguments": {}}, {"id": "x1", "name": "add", "arguments": {}}]',
        CALL,
        "{oops",
        '{"id": "x1", "name": "add", "arguments": {}}',
        "bye",
    ]
    trajectory = run(*texts, agent_args={"calls": "all"})
    called = [call["id"] for m in trajectory.messages for call in m.get("tool_calls", ())]
    assert called == ["x1", "call_1", "call_2", "x1"]
    answered = [m["tool_call_id"] for m in trajectory.messages if m["role"] == "tool"]
    assert answered == ["x1", "call_1", "call_2", "call_3", "x1"]


@pytest.mark.parametrize(
    "tools",
    [
        5,
        [None],
        [{"type": "function"}],
        [{"type": "function", "function": {"parameters": {}}}],
        [{"type": "function", "function": {"name": 5}}],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": {"name": "f", "parameters": []}}],
        [{"type": "function", "function": {"name": "f", "description": None}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"x": float("nan")}}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"x": {1, 2}}}}],
        [{"type": "function", "function": {"name": "f"}}] * 2,
    ],
    ids=repr,
)
def test_tools_that_are_none_are_the_environments_failure(tools):
    with pytest.raises(errors.EnvironmentFailure, match=r"environment\.tools"):
        run("bye", environment=FakeEnvironment(tools=tools))


def test_an_opening_that_is_not_the_users_own_is_the_environments_failure():
    """A journal has the message only, so a replay would not know what the user had said."""

    class Embroiders(FakeEnvironment):
        def reset(self, user):
            return "Customer: " + super().reset(user)

    with pytest.raises(errors.EnvironmentFailure, match="Customer: hello"):
        run("bye", environment=Embroiders())

    class Mute(FakeEnvironment):
        def reset(self, user):
            super().reset(FakeUser(["unheard"]))
            self.user = user
            return "Ticket 7"

    assert run("bye", environment=Mute(), user=FakeUser(["never said"])).messages[1]["content"] == "Ticket 7"
