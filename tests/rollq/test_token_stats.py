"""The counts of token fidelity, derived from events."""

from dataclasses import replace

from rollq.events import Finish, Prompt, VersionSpan
from rollq.token_stats import TokenStats, changed_prompts, count_tokens
from tests.rollq.samples import ids, job, observed, prompt, sampled, trajectory


def of(*events) -> TokenStats:
    return count_tokens(replace(trajectory(), events=events))


def test_what_is_extended_is_kept():
    # 3 prompt, 2 sampled, 2 bridge: of the 7 ids of the second request 5 were known.
    found = of(prompt(), sampled(0), observed(0), sampled(1), observed(1))
    assert (found.sent_tokens, found.kept_tokens, found.traces) == (7, 5, 1)
    assert found.extension_ratio == 5 / 7


def test_an_interrupted_turn_keeps_everything():
    found = of(prompt(), sampled(0, 7, finish=Finish.ABORT), sampled(0))
    assert (found.sent_tokens, found.kept_tokens, found.extension_ratio) == (4, 4, 1.0)


def test_a_rewritten_history_keeps_nothing():
    found = of(
        prompt(), sampled(0), replace(observed(0), ids=ids()), prompt(1, 2, 3, 7), sampled(1)
    )
    assert (found.sent_tokens, found.kept_tokens, found.traces, found.extension_ratio) == (
        4,
        0,
        2,
        0.0,
    )


def test_nothing_was_sent_twice():
    assert of(prompt(), sampled(0)).extension_ratio is None
    assert of() == TokenStats()


def test_unclosed_turns():
    action = {"name": "f", "arguments": {}}
    left_open = replace(observed(0), actions=[action, {**action, "unclosed": True}])
    assert of(prompt(), sampled(0), left_open, sampled(1), observed(1)).unclosed_turns == 1


def test_malformed_turns():
    assert (
        of(
            prompt(), sampled(0), replace(observed(0), errors=("no JSON",)), sampled(1)
        ).malformed_turns
        == 1
    )


def test_turns_whose_text_is_other_tokens():
    events = [
        prompt(),
        sampled(0, 7, finish=Finish.ABORT),
        sampled(0, 8),
        observed(0),
        sampled(1, 9),
        observed(1),
    ]
    encoded = []

    def reencode(turns):
        encoded.extend(turns)
        return [turn if len(turn) > 1 else ids(1, 2) for turn in turns]

    members = [replace(trajectory(of=job(sample, size=8)), events=events) for sample in range(8)]
    (counted,) = [
        stats for one in members if (stats := count_tokens(one, reencode)).reencoded_turns
    ]
    assert (counted.drifted_turns, counted.reencoded_turns) == (1, 2)
    assert [list(turn) for turn in encoded] == [[7, 8], [9]]  # of one job in eight
    assert of(*events).reencoded_turns == 0


def test_older_weights_that_come_back():
    spans = [VersionSpan("1", 0, 1), VersionSpan("2", 1, 2)]
    steady = [
        prompt(),
        replace(sampled(0), versions=spans),
        observed(0),
        sampled(1, version="2"),
        observed(1),
    ]
    assert of(*steady).version_breaks == 0
    assert (
        of(*steady, sampled(2, version="1"), observed(2), sampled(3, version="2")).version_breaks
        == 2
    )


def with_system(system: str, *more: str, role: str = "system") -> Prompt:
    conversation = [
        {"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(more)
    ]
    return replace(prompt(), messages=[{"role": role, "content": system}, *conversation])


def test_system_prompts_that_change_from_request_to_request():
    first = with_system("You code. cch=a1 Be brief.", "hi")
    second = with_system("You code. cch=b2 Be brief.", "hi", "so", "and?")
    third = with_system("You code. cch=c3 Be brief.", "hi", "so", "and?", "well", "more")
    assert list(changed_prompts([first, sampled(0), second, third])) == [
        "'cch=a1' became 'cch=b2'",
        "'cch=b2' became 'cch=c3'",
    ]
    assert of(first, sampled(0), second, sampled(1)).changed_prompts == 1


def test_other_traces_than_those_of_a_changed_system_prompt():
    first = with_system("You code.", "hi")
    for other in (
        first,  # sampled again
        with_system("You write titles.", "hi"),
        with_system("You search.", "find it", "so", "more"),
        with_system("You code.", "hi", "edited", "more"),
        with_system("You code?", "hi", "so", "more", role="user"),
    ):
        assert list(changed_prompts([first, other])) == []
