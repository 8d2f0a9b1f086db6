"""What an environment offers as tool schemas."""

import pytest

from rollq import errors
from rollq_worker.episode import messages
from rollq_worker.episode.messages import key_of_schemas, schemas_of
from rollq_worker.fakes import FakeEnvironment
from tests.rollq_worker.episode.episodes import run


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
def test_tools_that_are_no_schemas_are_the_environments_failure(tools):
    with pytest.raises(errors.EnvironmentFailure, match=r"environment\.tools"):
        run("bye", environment=FakeEnvironment(tools=tools))


def schema(**parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def test_environments_with_equal_schemas_share_them():
    one, other = (FakeEnvironment(tools=[schema(a={"type": "string"})]) for _ in range(2))
    assert schemas_of(one) is schemas_of(other)
    assert schemas_of(one) == [schema(a={"type": "string"})]


def test_schemas_that_compare_as_equal_are_told_apart():
    """True == 1 in Python, not in JSON."""
    values = (True, 1, 1.0)
    found = [schemas_of(FakeEnvironment(tools=[schema(a=value)])) for value in values]
    assert [repr(tools[0]["function"]["parameters"]["a"]) for tools in found] == [
        "True",
        "1",
        "1.0",
    ]


def test_schemas_that_change_in_place_are_read_again():
    tools = [schema(a=1)]
    first = schemas_of(FakeEnvironment(tools=tools))
    tools[0]["function"]["name"] = "g"
    assert schemas_of(FakeEnvironment(tools=tools))[0]["function"]["name"] == "g"
    assert first[0]["function"]["name"] == "f"


def test_schemas_of_an_unusual_kind_become_plain():
    class Odd(dict):
        """A mapping of an environment's own."""

    found = schemas_of(FakeEnvironment(tools=(Odd(schema(a=(1, 2))),)))
    assert found == [schema(a=[1, 2])] and type(found[0]) is dict


def test_few_schemas_are_kept():
    for n in range(3 * messages.MAX_SCHEMAS):
        schemas_of(FakeEnvironment(tools=[schema(a=n)]))
    assert len(messages._schemas) <= messages.MAX_SCHEMAS


def test_checked_schemas_that_come_back_are_the_same_list(monkeypatch):
    checked = schemas_of(FakeEnvironment(tools=[schema(a="comes back")]))
    monkeypatch.setattr(messages.marshal, "dumps", lambda *_: pytest.fail("they are checked again"))
    assert schemas_of(FakeEnvironment(tools=checked)) is checked


def test_the_key_of_schemas_is_that_of_their_content():
    tuples, lists = ([schema(a={"enum": values})] for values in (("x",), ["x"]))
    keys = {key_of_schemas(schemas_of(FakeEnvironment(tools=tools))) for tools in (tuples, lists)}
    assert keys == {key_of_schemas(lists)}
    assert key_of_schemas([schema(a={"enum": ["y"]})]) not in keys
