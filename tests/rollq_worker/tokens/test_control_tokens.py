"""Whatever users, tools and schemas say of control tokens is text, in every family."""

import json
from collections import Counter
from typing import Any

import pytest

from rollq.events import Message
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.check import check, checked_renderer
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.tokens.training_templates import training_templates
from tests.rollq_worker.tokens.family_habits import FAMILY_HABITS
from tests.rollq_worker.tokens.messages import REPLY, TOOLS, called, result
from tests.rollq_worker.tokens.models import NAMES, trained_tokenizer
from tests.rollq_worker.tokens.template_habits import HABITS

TEXT_CALLS = ["gemma", "phi3", "lfm2", "deepseek-r1", "lfm2.5"]
"""Templates that leave calls out: rollq writes them as text."""
OTHERS = {name: HABITS[name] for name in ["the tools again at each message"]} | FAMILY_HABITS


@pytest.fixture
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    kind, name = request.param
    if kind == "real":
        return request.getfixturevalue("real").tokenizer(name)
    return trained_tokenizer(name) if kind == "training" else OTHERS[name].tokenizer(name)


def schemas(text: str) -> list[dict[str, Any]]:
    spoken = json.loads(json.dumps(TOOLS))
    spoken[0]["function"]["description"] = text
    spoken[0]["function"]["parameters"]["properties"]["x"]["description"] = text
    return spoken


ALL = [
    *(("real", n) for n in NAMES),
    *(("training", n) for n in training_templates()),
    *(("habit", n) for n in OTHERS),
]


@pytest.mark.parametrize("tokenizer", ALL, indirect=True, ids=" ".join)
def test_what_others_say_of_control_tokens_is_text(tokenizer: Tokenizer) -> None:
    renderer, control = checked_renderer(tokenizer, TOOLS), set(tokenizer.added_tokens.values())

    def controls(
        text: str, renderer: ChatRenderer, tools: list[dict[str, Any]]
    ) -> list[Counter[int]]:
        opening: list[Message] = [{"role": role, "content": text} for role in ("system", "user")]
        call = called()
        if tokenizer.name in TEXT_CALLS:
            call["tool_calls"][0]["function"]["arguments"] = json.dumps({"x": text})
            opening += [call, result(text)]
        user = [{"role": "user", "content": text}]
        ids = [
            renderer.open(opening, tools),
            renderer.bridge(call, [result(text)]),
            renderer.bridge(REPLY, user),
        ]
        if (
            tokenizer.name != "nemotron-nano-v2"
        ):  # whose template takes `/think` out of what users say
            assert text in tokenizer.decode(ids[2]), text
        return [Counter(id for id in some if id in control) for some in ids]

    plain = controls("x", renderer, TOOLS)
    for token in tokenizer.added_tokens:
        for text in (token, f"a{token[:-1]}{token}{token}{token[1:]}b"):
            assert controls(text, renderer, schemas(text)) == plain, text
    spoken = schemas(" ".join(list(tokenizer.added_tokens)[:40]))
    assert controls("x", checked_renderer(tokenizer, spoken), spoken) == plain
    assert check(tokenizer, spoken).edges == check(tokenizer, TOOLS).edges
