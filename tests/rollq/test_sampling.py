"""Sampling parameters: what SGLang takes passes, and what it would refuse is refused by name before
it is sent.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq import sampling
from rollq.errors import ContractError
from rollq.job import Budget, Job
from rollq.wire.codec import decode_job, encode_job

FINE: list[dict[str, Any]] = [
    {},
    {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0},
    {"temperature": 2.5, "top_p": 0.01, "top_k": 1, "min_p": 1.0},
    {"frequency_penalty": -2, "presence_penalty": 2, "repetition_penalty": 1.1},
    {"min_new_tokens": 1024, "ignore_eos": True},
    {"stop": "END"},
    {"stop": ["END"] * 32, "stop_token_ids": [0, 151645], "stop_regex": ["a+", "b"]},
    {"json_schema": '{"type": "object"}'},
    {"regex": "a|b"},
    {"ebnf": 'root ::= "a"', "logit_bias": {"17": -2.5, "0": 1000}, "sampling_seed": 7},
]


@pytest.mark.parametrize("given", FINE, ids=repr)
def test_what_the_engine_takes_passes_and_survives_the_wire(given: dict[str, Any]) -> None:
    job = Job(run="r", group="g", env="e", task=0, sampling=given)
    assert decode_job(encode_job(job)).sampling == given


WRONG: list[tuple[str, Any]] = [
    *(
        ("temperature", value)
        for value in (-0.1, True, "hot", None, float("inf"), float("nan"), 10**400)
    ),
    *(("top_p", value) for value in (0, 1.01, "1", True)),
    *(("top_k", value) for value in (0, -2, 1.0, -1.0, True, 2**31)),
    *(("min_p", value) for value in (-0.1, 1.1)),
    *(
        (name, value)
        for name in ("frequency_penalty", "presence_penalty")
        for value in (-2.1, 2.1, "0")
    ),
    *(("repetition_penalty", value) for value in (0, 2.1)),
    *(("min_new_tokens", value) for value in (-1, 1.0, 1025)),
    *(("stop", value) for value in (5, "", [""], ["a"] * 33, [1], {"a": 1})),
    *(("stop_token_ids", value) for value in (5, ["5"], [-1], [True], [2**31], "12")),
    *(("stop_regex", value) for value in ("", "(", "a" * 257, ["("], 5)),
    *((name, value) for name in sampling.GRAMMARS for value in ("", 5, {"type": "object"})),
    *(("ignore_eos", value) for value in (1, "yes", None)),
    *(
        ("logit_bias", value)
        for value in ({17: 1.0}, {"-1": 1.0}, {"a": 1.0}, {"1": "x"}, {"1": float("nan")}, [1])
    ),
    *(("sampling_seed", value) for value in (-1, 1.5, 2**63)),
    *((name, 5) for name in sampling.OURS),
    *(
        (name, 5)
        for name in (
            "max_tokens",
            "return_logprob",
            "logprob_start_len",
            "top_logprobs_num",
            "beam_width",
        )
    ),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda part: repr(part)[:40])
def test_nonsense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ContractError, match=f"^job r/g/0: sampling.*{name}"):
        Job(
            run="r",
            group="g",
            env="e",
            task=0,
            sampling={name: value},
            budget=Budget(max_new_tokens=1024),
        )


def test_one_grammar_a_turn() -> None:
    with pytest.raises(ContractError, match="regex and ebnf"):
        Job(run="r", group="g", env="e", task=0, sampling={"regex": "a", "ebnf": "b"})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([*sampling.PARAMETERS, "x"]), VALUES))
def test_any_parameter_is_taken_or_named(given: dict[str, Any]) -> None:
    why = sampling.objection(given, 1024)
    if why:
        assert any(name in why for name in given)
    else:
        assert all(
            name in sampling.PARAMETERS and sampling.PARAMETERS[name][0](given[name])
            for name in given
        )
