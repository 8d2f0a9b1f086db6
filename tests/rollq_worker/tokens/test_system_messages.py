"""Every system message of a conversation is in the prompt, whatever the template takes."""

import pytest

from rollq.events import Message
from rollq_worker.tokens.model_family import Family
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.template_messages import in_known_roles
from rollq_worker.tokens.training_templates import training_templates
from tests.rollq_worker.tokens.messages import TOOLS
from tests.rollq_worker.tokens.models import NAMES, RealTemplates, trained_tokenizer

FIRST: Message = {"role": "system", "content": "firstword"}
SECOND: Message = {"role": "system", "content": "secondword"}
USER: Message = {"role": "user", "content": "userword"}
TURN: Message = {"role": "assistant", "content": "turnword"}
CONVERSATIONS = [
    [FIRST, SECOND, USER],
    [FIRST, USER, TURN, SECOND, USER],
    [FIRST, USER, SECOND],
    [USER, TURN, SECOND],
]
ONE_SYSTEM = Family(name="f", stops=("<e>",), parser="hermes", one_system=True)


def words(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] != "assistant"]


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_no_real_template_loses_one(real: RealTemplates, name: str, messages: list[Message]):
    renderer = ChatRenderer(real.tokenizer(name), TOOLS)
    prompt = renderer.tokenizer.decode(renderer.open(messages, TOOLS))
    assert [word for word in words(messages) if word not in prompt] == []


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("name", training_templates())
def test_no_training_template_loses_one(name: str, messages: list[Message]):
    renderer = ChatRenderer(trained_tokenizer(name), TOOLS)
    prompt = renderer.tokenizer.decode(renderer.open(messages, TOOLS))
    assert [word for word in words(messages) if word not in prompt] == []


def test_those_at_the_beginning_become_one():
    [system, user] = in_known_roles([FIRST, SECOND, USER], ONE_SYSTEM)
    assert system == {"role": "system", "content": "firstword\n\nsecondword"}
    assert user == USER


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([FIRST, USER, TURN, SECOND, USER], "secondword\n\nuserword"),
        ([FIRST, USER, TURN, SECOND], "secondword"),
        ([FIRST, USER, SECOND], "userword\n\nsecondword"),
        ([USER, SECOND, SECOND], "userword\n\nsecondword\n\nsecondword"),
    ],
)
def test_a_later_one_is_shown_as_the_users(messages: list[Message], shown: str):
    last = in_known_roles(messages, ONE_SYSTEM)[-1]
    assert last == {"role": "user", "content": shown}


def test_a_template_that_takes_several_gets_them_as_they_are():
    several = Family(name="f", stops=("<e>",), parser="hermes")
    assert in_known_roles(CONVERSATIONS[1], several) == CONVERSATIONS[1]
