"""What the client finds out about an engine: its context, its vocabulary, its tokenizer."""

from collections.abc import Sequence
from typing import Any

import pytest

from rollq.errors import JobFailure
from rollq.events import Finish
from rollq_worker.engine import limits
from rollq_worker.engine.limits import PADDING, TokenizerCheck, Vocabulary, ids_of
from rollq_worker.remote.http_client import NoResponse
from tests.rollq_worker.engine.clients import Connect, generate, one_text
from tests.rollq_worker.engine.engine_servers import good_reply, scripted_engine

INFO = {"context_length": 1000, "max_req_input_len": 994}
OURS = (5, 6, 7)


class TestContext:
    def test_as_the_server_says(self, connect: Connect) -> None:
        with scripted_engine(server_info=(200, INFO)) as engine:
            client = connect(engine)
            assert [client.room(prompt) for prompt in (1, 993, 994, 2000)] == [999, 7, 0, 0]
            assert len(engine.bodies("/server_info")) == 1
            generate(client, ids=[1] * 993)
            assert engine.bodies()[-1]["sampling_params"]["max_new_tokens"] == 7
            assert generate(client, ids=[1] * 994).finish is Finish.LENGTH
            assert len(engine.bodies()) == 1

    def test_a_server_that_was_started_without_a_context_length(self, connect: Connect) -> None:
        info = {"context_length": None, "max_req_input_len": 500}
        models = {"v1/models": (200, {"data": [{"max_model_len": 600}]})}
        with scripted_engine(server_info=(200, info), **models) as engine:
            assert connect(engine).room(100) == 500

    @pytest.mark.parametrize("value", [0, -1, True, "1000", 8.5, None])
    def test_a_value_that_is_not_a_length_is_ignored(self, connect: Connect, value: object) -> None:
        """It would end every episode by length."""
        info = {"context_length": value, "max_req_input_len": value}
        models = {"v1/models": (200, {"data": [{"max_model_len": value}]})}
        with scripted_engine(server_info=(200, info), **models) as engine:
            assert connect(engine).room(100) > 1_000_000

    def test_unknown_behind_a_router(self, connect: Connect) -> None:
        with scripted_engine() as engine:
            client = connect(engine)
            assert client.room(100) > 1_000_000 and client.room(100) > 1_000_000
            assert len(engine.bodies("/server_info")) == 1

    def test_learnt_from_a_refusal(self, connect: Connect) -> None:
        message = (
            "Requested token count exceeds the model's maximum context length of 8 "
            "tokens. You requested ..."
        )
        with scripted_engine((400, {"error": {"message": message}})) as engine:
            client = connect(engine)
            generate(client)
            assert [body["sampling_params"]["max_new_tokens"] for body in engine.bodies()] == [
                10,
                5,
            ]
            assert client.room(3) == 5

    def test_one_odd_refusal_does_not_shorten_every_episode(self, connect: Connect) -> None:
        """Of a smaller server behind the same address, say: what the engine reports of itself
        stays.
        """
        message = "The input (9999 tokens) is longer than the model's context length (5 tokens)."
        with scripted_engine(
            (400, {"error": {"message": message}}), server_info=(200, INFO)
        ) as engine:
            client = connect(engine)
            with pytest.raises(JobFailure, match=r"context length \(5 tokens\)"):
                generate(client)
            assert client.room(100) == 900
            assert generate(client).finish is Finish.STOP

    def test_an_engine_that_was_replaced_by_one_with_a_shorter_context(
        self, connect: Connect
    ) -> None:
        message = "The input (800 tokens) is longer than the model's context length (500 tokens)."
        refusal = (400, {"error": {"message": message}})
        with scripted_engine(refusal, server_info=(200, INFO)) as engine:
            client = connect(engine)
            assert client.room(400) == 600
            engine.paths["/server_info"] = (200, {"context_length": 500, "max_req_input_len": 494})
            assert generate(client, ids=[1] * 800).finish is Finish.LENGTH
            assert client.room(400) == 100

    def test_an_idle_engine_that_was_replaced_by_one_with_a_longer_context(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with scripted_engine(server_info=(200, INFO)) as engine:
            client = connect(engine)
            generate(client)
            engine.paths["/server_info"] = (200, {"context_length": 2000})
            generate(client)
            assert client.room(400) == 600
            monkeypatch.setattr(limits, "IDLE_S", 0.0)
            generate(client)
            assert client.room(400) == 1600

    def test_a_prompt_that_does_not_fit_has_the_engine_asked_again(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with scripted_engine(server_info=(200, INFO)) as engine:
            client = connect(engine)
            assert client.room(1500) == 0
            engine.paths["/server_info"] = (200, {"context_length": 2000})
            assert client.room(1500) == 0
            monkeypatch.setattr(limits, "IDLE_S", 0.0)
            assert client.room(1500) == 500

    def test_a_report_stays_while_the_engine_does_not_repeat_it(self, connect: Connect) -> None:
        """Else it would seem to be a router, and jobs with a logit_bias would fail."""
        message = "The input (800 tokens) is longer than the model's context length (500 tokens)."
        refusal = (400, {"error": {"message": message}})
        with scripted_engine(refusal, server_info=(200, INFO)) as engine:
            client = connect(engine)
            assert client.room(400) == 600
            engine.paths["/server_info"] = (503, {})
            with pytest.raises(JobFailure, match=r"context length \(500 tokens\)"):
                generate(client, ids=[1] * 800)
            assert client.room(400) == 600
            assert generate(client, logit_bias={"5": 1.0}).finish is Finish.STOP

    @pytest.mark.parametrize("count", [83, 89, 93])
    def test_an_engine_that_reserves_tokens_for_drafts(self, connect: Connect, count: int) -> None:
        """As SGLang with EAGLE, which reports its whole context."""

        def counted(body: dict[str, Any]) -> Any:
            prompt, new = len(body["input_ids"]) + 8, body["sampling_params"]["max_new_tokens"]
            if prompt + new <= 100:
                return good_reply(body)
            total = (
                f"You requested a total of {prompt + new} tokens: {prompt} tokens from the "
                "input messages and ..."
            )
            longest = (
                "Requested token count exceeds the model's maximum context length of "
                f"100 tokens. {total}"
            )
            return 400, {"error": {"message": longest}}

        info = {"context_length": 100, "max_req_input_len": 94}
        with scripted_engine(then=counted, server_info=(200, info)) as engine:
            client = connect(engine)
            finish = Finish.LENGTH if count == 93 else Finish.STOP
            assert generate(client, ids=[1] * count).finish is finish
            assert len(engine.bodies()) <= 2 and client.room(50) == 42

    def test_a_refusal_that_leaves_as_much_room_is_final(self, connect: Connect) -> None:
        message = (
            "Requested token count exceeds the model's maximum context length of 100 "
            "tokens. You requested ..."
        )
        info = {"context_length": 100, "max_req_input_len": 94}
        with scripted_engine(
            then=(400, {"error": {"message": message}}), server_info=(200, info)
        ) as engine:
            with pytest.raises(JobFailure, match="of 100 tokens"):
                generate(connect(engine), ids=[1] * 92)
            assert len(engine.bodies()) == 1

    def test_a_refusal_that_names_no_limit_is_final(self, connect: Connect) -> None:
        message = {"error": {"message": "the context length is exceeded, that is all I say"}}
        with scripted_engine((400, message)) as engine:
            with pytest.raises(JobFailure, match="the context length is exceeded"):
                generate(connect(engine))
            assert len(engine.bodies()) == 1


class TestVocabulary:
    @pytest.mark.parametrize("id", [100 + PADDING, 4_000_000_000, 2**40])
    def test_an_id_that_no_model_has_admits_nothing(self, id: int) -> None:
        vocabulary = Vocabulary(100)
        vocabulary.admit([id, 120])
        assert vocabulary.knows(120) and not vocabulary.knows(121)


class FakeTokenize:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self, text: str) -> object:
        self.calls += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def tokens(*ids: int) -> dict[str, Sequence[int]]:
    return {"tokens": list(ids)}


class TestTokenizer:
    @pytest.mark.parametrize(
        ("answer", "ids"),
        [
            (tokens(5, 6, 7), [5, 6, 7]),
            (tokens(), None),
            (tokens(5, -1), None),
            ({"tokens": [[5, 6, 7]]}, None),
            (None, None),
        ],
    )
    def test_the_ids_of_a_reply(self, answer: object, ids: object) -> None:
        assert ids_of(answer) == ids

    def test_each_engine_is_asked_once(self) -> None:
        tokenize = FakeTokenize(tokens(*OURS), tokens(8))
        check = TokenizerCheck(tokenize, one_text(*OURS))
        assert not check.differs() and not check.differs() and tokenize.calls == 1
        check.forget()
        assert check.differs() and check.differs() and tokenize.calls == 2

    def test_another_engine_at_the_address_of_an_idle_one_is_noticed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "IDLE_S", 0.0)
        check = TokenizerCheck(FakeTokenize(tokens(*OURS), tokens(8)), one_text(*OURS))
        assert not check.differs() and check.differs()

    def test_an_engine_that_does_not_say_is_trusted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "RETRY_S", 0.0)
        tokenize = FakeTokenize(NoResponse("away"), None)
        check = TokenizerCheck(tokenize, one_text(*OURS))
        assert not check.differs() and not check.differs() and not check.differs()
        assert (
            tokenize.calls == 2 and not check.shows_ids
        )  # away: once more; a router's 404: never again
