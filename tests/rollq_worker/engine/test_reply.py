"""Replies are valid or an exception that says what to do, whatever an engine sends."""

import json
import math
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.errors import JobFailure
from rollq.events import Finish, VersionSpan
from rollq_worker.engine.exchange.replies import (
    MAX_MESSAGE,
    ContextExceeded,
    EngineUnavailable,
    RequestFailed,
    read_error,
    read_refusal,
)
from rollq_worker.engine.sglang.generate import read_reply
from rollq_worker.protocols import Generated, SampleRequest
from rollq_worker.remote.http_client import Response
from tests.rollq_worker.engine.clients import KEY
from tests.rollq_worker.engine.engine_servers import reply

PROMPT, MOST, VOCABULARY, RID = 3, 10, 100, "x"


def read(body: bytes, max_new_tokens: int = MOST) -> Generated:
    request = SampleRequest(
        ids=array("I", range(PROMPT)),
        sampling={},
        max_new_tokens=max_new_tokens,
        key=KEY,
        check=lambda: None,
    )
    return read_reply(body, request, rid=RID, vocabulary=VOCABULARY)


def encoded(ids: tuple[int, ...] = (7, 8, 9), **meta: Any) -> bytes:
    return json.dumps(reply(list(ids), **meta)).encode()


def abort(
    status: int | None, message: str = "queue timeout", kind: str | None = "Timeout"
) -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": status, "err_type": kind}


class TestReplies:
    def test_an_answer_to_another_request(self) -> None:
        with pytest.raises(RequestFailed, match="this answers another request: other"):
            read(encoded(id="other"))

    def test_a_lone_surrogate_is_replaced(self) -> None:
        body = json.dumps({**reply([7, 8, 9]), "text": "\ud83d"}).encode()
        assert read(body).text == "\ufffd"

    def test_versions(self) -> None:
        spans = [{"version": "a", "start": 0, "end": 0}, {"version": "b", "start": 0, "end": 2}]
        spans.append({"version": "c", "start": 2, "end": 3})
        assert read(encoded(weight_versions=spans)).versions == (
            VersionSpan("b", 0, 2),
            VersionSpan("c", 2, 3),
        )

    def test_a_server_without_spans(self) -> None:
        body = json.loads(encoded())
        del body["meta_info"]["weight_versions"]
        assert read(json.dumps(body).encode()).versions == (VersionSpan("v1", 0, 3),)

    @pytest.mark.parametrize(
        ("meta", "complaint"),
        [
            ({"completion_tokens": 2}, "3 output ids, but completion_tokens is 2"),
            ({"output_token_logprobs": None}, "no output_token_logprobs"),
            (
                {"output_token_logprobs": [[-1.0, 7, None]]},
                "1 logprobs do not belong to the 3 output ids",
            ),
            ({"output_token_logprobs": [[-1.0, i, None] for i in (7, 8, 8)]}, "do not belong"),
            (
                {"output_token_logprobs": [[0.01, i, None] for i in (7, 8, 9)]},
                "a logprob is above 0",
            ),
            (
                {"output_token_logprobs": [[None, i, None] for i in (7, 8, 9)]},
                "unreadable output_token_logprobs",
            ),
            ({"output_token_logprobs": [[math.nan, i, None] for i in (7, 8, 9)]}, "not finite"),
            (
                {
                    "output_token_logprobs": [
                        [p, i, None] for i, p in ((7, -1), (8, -9999), (9, -1))
                    ]
                },
                "logprob -9999",
            ),
            ({"weight_versions": [{"version": "a", "start": 0, "end": 2}]}, "do not tile 3 tokens"),
            (
                {"weight_versions": [{"version": "a", "start": i, "end": i + 1} for i in (0, 2)]},
                "do not tile",
            ),
            ({"weight_versions": [{"version": "a"}]}, "unreadable weight_versions"),
            ({"finish_reason": {"type": "tired"}}, "not a reply"),
            ({"prompt_tokens": 2}, "the engine saw 2 prompt tokens of 3"),
        ],
    )
    def test_parts_that_do_not_fit_together(self, meta: dict[str, Any], complaint: str) -> None:
        with pytest.raises(RequestFailed, match=complaint):
            read(encoded(**meta))

    def test_a_reply_without_tokens(self) -> None:
        with pytest.raises(
            RequestFailed, match="no token was sampled, but the finish reason is length"
        ):
            read(encoded((), finish_reason={"type": "length", "length": MOST}))

    def test_more_tokens_than_were_asked_for(self) -> None:
        with pytest.raises(RequestFailed, match="3 tokens were sampled where 2 were allowed"):
            read(encoded(), max_new_tokens=2)


class TestAborts:
    @pytest.mark.parametrize(
        ("status", "failure"),
        [(503, EngineUnavailable), (500, RequestFailed), (None, RequestFailed), (400, JobFailure)],
    )
    def test_the_engine_had_a_reason(self, status: int | None, failure: type[Exception]) -> None:
        with pytest.raises(failure, match="the engine aborted the request: queue timeout"):
            read(encoded((), finish_reason=abort(status)))

    def test_partial_tokens_are_kept_whatever_the_reason(self) -> None:
        generated = read(encoded(finish_reason=abort(503)))
        assert (generated.finish, generated.ids) == (Finish.ABORT, array("I", [7, 8, 9]))

    def test_aborted_in_the_queue(self) -> None:
        reason = {"type": "abort", "message": "Abort in waiting queue"}
        body = {"text": "", "output_ids": [], "meta_info": {"id": RID, "finish_reason": reason}}
        generated = read(json.dumps(body).encode())
        assert (generated.finish, len(generated.ids), generated.versions) == (Finish.ABORT, 0, ())


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b'{"error": {"message": "too long"}}', "too long"),
            (b'{"error": "unknown field `max_tokens`"}', "unknown field `max_tokens`"),
            (
                b'{"object": "error", "message": "1 validation error:\\n  x\\n\\n  File \\"/srv/a.py\\", line 3"}',  # noqa: E501
                "1 validation error: x",
            ),
            (b'{"detail": "Not Found"}', "Not Found"),
            (b"<html>Bad\n Gateway</html>", "<html>Bad Gateway</html>"),
            (b"[1, 2]", "[1, 2]"),
            (b"\xff", "\ufffd"),
        ],
    )
    def test_the_message_is_found(self, body: bytes, message: str) -> None:
        assert read_error(body) == message

    def test_a_long_body_is_cut(self) -> None:
        assert len(read_error(b"x" * 5000)) < 400

    @pytest.mark.parametrize(
        ("message", "limit", "prompt"),
        [
            (
                "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
                4096,
                9000,
            ),
            (
                "Requested token count exceeds the model's maximum context length of "
                "4096 tokens. You requested a total"
                " of 5000 tokens: 4000 tokens from the input messages and 1000 tokens "
                "for the completion. Please ...",
                4096,
                4000,
            ),
            (
                "Input length (4090 tokens) exceeds the maximum allowed length "
                "(4090 tokens). Use ...",
                4090,
                4090,
            ),
            ("The context length is exceeded.", 0, 0),
        ],
    )
    def test_a_context_limit_is_found(self, message: str, limit: int, prompt: int) -> None:
        refusal = read_refusal(Response(400, json.dumps({"error": message}).encode()), KEY)
        assert isinstance(refusal, ContextExceeded) and (refusal.limit, refusal.prompt) == (
            limit,
            prompt,
        )

    def test_other_refusals_blame_the_job(self) -> None:
        refusal = read_refusal(Response(400, b'{"error": "temperature must be positive"}'), KEY)
        assert isinstance(refusal, JobFailure) and str(refusal).startswith(KEY)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
GOOD = reply([7, 8, 9], prompt_tokens=PROMPT, id=RID)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value inside, itself first."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from paths(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    if not path:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], to)
    return copy


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bytes, JSON, and good replies with one or two wrong values or cut short."""
    kind = draw(st.sampled_from(["bytes", "json", "changed", "changed", "changed", "cut"]))
    if kind == "bytes":
        return draw(st.binary(max_size=50))
    if kind == "json":
        return json.dumps(draw(JSON)).encode()
    body = GOOD
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(paths(body))))
        interesting = [
            -1,
            0,
            1,
            2**32 - 1,
            2**63,
            10**400,
            -0.0,
            1e300,
            math.nan,
            math.inf,
            True,
            "",
            [],
            {},
            None,
        ]
        body = changed(body, path, draw(JSON | st.sampled_from(interesting)))
    text = json.dumps(body).encode()
    return text[: draw(st.integers(0, len(text)))] if kind == "cut" else text


def assert_valid(generated: Generated) -> None:
    assert len(generated.ids) == len(generated.logprobs) <= MOST
    assert all(0 <= id < VOCABULARY for id in generated.ids)
    assert all(math.isfinite(p) and p <= 1e-6 for p in generated.logprobs)
    ends = [0, *(span.end for span in generated.versions)]
    assert [span.start for span in generated.versions] == ends[:-1] and ends[-1] == len(
        generated.ids
    )
    assert all(isinstance(span.version, str) for span in generated.versions)
    assert isinstance(generated.text, str) and 0 <= generated.cached_tokens <= PROMPT


class TestGarbage:
    @settings(max_examples=600, deadline=None)
    @given(bodies())
    def test_a_reply_is_valid_or_a_typed_failure(self, body: bytes) -> None:
        try:
            assert_valid(read(body))
        except (RequestFailed, EngineUnavailable, JobFailure) as e:
            assert len(str(e)) < 5 * MAX_MESSAGE
            blamed = isinstance(e, RequestFailed) or "the engine aborted the request" in str(e)
            assert blamed  # nothing else is the job's fault, or waited for

    @settings(max_examples=300, deadline=None)
    @given(st.integers(100, 599).filter(lambda status: status != 200), bodies())
    def test_a_refusal_is_one_of_four(self, status: int, body: bytes) -> None:
        refusal = read_refusal(Response(status, body), KEY)
        assert isinstance(refusal, EngineUnavailable | RequestFailed | ContextExceeded | JobFailure)
        assert len(read_error(body)) <= MAX_MESSAGE + 4 and "\n" not in read_error(body)
        blamed = isinstance(refusal, ContextExceeded | JobFailure)
        assert (
            not blamed or 400 <= status < 500
        )  # only an engine that looked at the request may refuse it
