"""Routed experts in a reply: read as SGLang writes them, or refused with what is amiss."""

import base64
import json
import random
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.errors import EngineBreach, EngineFailure
from rollq.events import Finish
from rollq.training.arrays import array_of
from rollq.trajectory_extras import ExpertShape
from rollq_worker.engine.sglang.generate import read_reply
from rollq_worker.engine.sglang.routed_experts import read_routed_experts
from rollq_worker.protocols import Generated, Routing, SampleRequest
from tests.rollq.routed_experts import SHAPE
from tests.rollq_worker.engine.clients import KEY, Connect
from tests.rollq_worker.engine.engine_servers import reply, scripted_engine
from tests.sample_requests import sample_request

PROMPT, SAMPLED = 4, [7, 8, 9]
LENGTH = PROMPT + len(SAMPLED)


def encoded(ids: list[int]) -> str:
    """As SGLang encodes a tensor of int32."""
    return base64.b64encode(array("i", ids).tobytes()).decode()


def meta(rows: int, shape: ExpertShape = SHAPE, **changes: int) -> dict[str, Any]:
    ids = [place % shape.experts for place in range(rows * shape.layers * shape.top_k)]
    for at, id in changes.items():
        ids[int(at[1:])] = id
    return {"routed_experts": encoded(ids)}


shapes = st.builds(
    ExpertShape,
    layers=st.integers(1, 4),
    top_k=st.integers(1, 3),
    experts=st.sampled_from([3, 256, 257]),
)


@given(shapes, st.integers(0, LENGTH - 2), st.randoms(use_true_random=False))
def test_what_is_read_is_what_was_routed(
    shape: ExpertShape, start: int, rng: random.Random
) -> None:
    rows = LENGTH - 1 - start
    ids = [rng.randrange(shape.experts) for _ in range(rows * shape.layers * shape.top_k - 1)] + [
        shape.experts - 1
    ]
    ids[:: shape.top_k * shape.layers] = [1] * rows
    part = read_routed_experts(
        {"routed_experts": encoded(ids)}, Routing(start=start, shape=shape), KEY, LENGTH
    )
    assert part.shape == (rows, shape.layers, shape.top_k) and part.dtype == shape.dtype
    assert array_of(part).ravel().tolist() == ids


def test_an_engine_without_the_flag_is_told_of_it() -> None:
    with pytest.raises(
        EngineFailure,
        match="reports no routed experts: start SGLang with --enable-return-routed-exp",
    ):
        read_routed_experts({}, Routing(start=0, shape=SHAPE), KEY, LENGTH)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (meta(5), "are 20 for 6 tokens, and the job says 2 layers x top 2 = 4"),
        (
            meta(6, ExpertShape(layers=3, top_k=2, experts=200)),
            "are 6 a token, and the job says 2 layers x top 2 = 4",
        ),
        ({"routed_experts": encoded([])}, "are 0 a token"),
        ({"routed_experts": "AAAA!"}, "are not base64"),
        ({"routed_experts": [1, 2]}, "are not base64"),
        (meta(6, _3=200), "name expert 200, and the job says 200 experts"),
        (meta(6, _3=256), "name expert above 255, and the job says 200 experts"),
        (meta(6, _3=-1), "negative or above 65535"),
        (meta(6, _3=1 << 16), "negative or above 65535"),
        (meta(6, _8=0, _9=0, _10=0, _11=0), "were not recorded: row 2 has nothing but 0"),
    ],
)
def test_what_is_amiss_is_the_engines_breach(found: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineBreach, match=f"{KEY}: the engine's routed experts .*{message}"):
        read_routed_experts(found, Routing(start=0, shape=SHAPE), KEY, LENGTH)


def test_more_than_256_experts_are_bounded_too() -> None:
    shape = ExpertShape(layers=2, top_k=2, experts=300)
    with pytest.raises(EngineBreach, match="name expert 300, and the job says 300 experts"):
        read_routed_experts(meta(6, shape, _3=300), Routing(start=0, shape=shape), KEY, LENGTH)


def test_a_row_of_zeros_is_fine_where_one_expert_is_picked() -> None:
    shape = ExpertShape(layers=2, top_k=1, experts=4)
    part = read_routed_experts(
        {"routed_experts": encoded([0, 0])}, Routing(start=0, shape=shape), KEY, 2
    )
    assert part.data == b"\0\0"


def read(finish: str, **more: Any) -> Generated:
    body = json.dumps(reply(SAMPLED, finish_reason={"type": finish}, **more)).encode()
    request = SampleRequest(
        ids=array("I", range(PROMPT)),
        sampling={},
        max_new_tokens=10,
        key=KEY,
        check=lambda: None,
        routing=Routing(start=0, shape=SHAPE),
    )
    return read_reply(body, request, rid="x", vocabulary=100)


def test_an_aborted_piece_comes_with_its_rows_or_not_at_all() -> None:
    whole = read("abort", **meta(6))
    assert whole.routed_experts is not None and whole.ids.tolist() == SAMPLED
    nothing = read("abort")
    assert nothing.finish is Finish.ABORT and not nothing.ids and nothing.routed_experts is None


def test_a_client_asks_only_where_it_is_told_to(connect: Connect) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return reply(SAMPLED, id=body["rid"], prompt_tokens=PROMPT, **meta(4))

    with scripted_engine(answer, answer) as engine:
        client = connect(engine)
        ids = array("I", range(1, PROMPT + 1))
        assert client.generate(sample_request(ids)).routed_experts is None
        found = client.generate(
            sample_request(ids, routing=Routing(start=2, shape=SHAPE))
        ).routed_experts
        assert found is not None and found.shape == (4, 2, 2)
        plain, asking = engine.bodies()
        assert not {"return_routed_experts", "routed_experts_start_len"} & plain.keys()
        assert (asking["return_routed_experts"], asking["routed_experts_start_len"]) == (True, 2)
