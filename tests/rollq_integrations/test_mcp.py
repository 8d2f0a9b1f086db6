"""Tools of real MCP servers, over stdio and HTTP."""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import requests

from rollq.env import Action, Tools
from rollq.errors import EnvironmentFailure, JobFailure
from rollq_integrations.mcp import mcp_server, mcp_servers, session
from rollq_worker.environments.dataset import dataset
from rollq_worker.fakes import FakeUser
from tests.conftest import free_port
from tests.rollq_worker.environments.episodes import respond

SERVER = Path(__file__).with_name("mcp_server.py")
COMMAND = (sys.executable, str(SERVER))
RUDE = "import os, runpy, sys, time; {}; runpy.run_path(sys.argv.pop(), run_name='__main__'); {}"
"""A server that does something of its own before and after."""


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    session = mcp_server(*COMMAND)()
    yield session
    session.close()


@pytest.fixture
def failing_tools() -> Iterator[Tools]:
    """Those of a server that no other test needs."""
    session = mcp_server(*COMMAND)()
    yield session
    session.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [*COMMAND, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}/mcp"
    deadline = time.monotonic() + 60
    while True:
        try:
            requests.get(url, timeout=1)
            break
        except requests.RequestException:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
    yield url
    process.terminate()
    process.wait(30)


def servers() -> list[str]:
    """The processes of this one that are servers of an episode."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split(maxsplit=1) for line in listed.splitlines())
    return [args for ppid, args in rows if ppid == str(os.getpid()) and args.endswith(SERVER.name)]


def test_tools_have_schemas_and_results(tools: Tools) -> None:
    [schema] = [schema for schema in tools.schemas if schema["function"]["name"] == "add"]
    assert schema["function"]["description"] == "Adds two numbers."
    assert schema["function"]["parameters"]["required"] == ["a", "b"]
    assert tools.call(Action("add", {"a": 1, "b": 2})) == "3"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("nothing", ""),
        ("blank", ""),
        ("several", "one\n[image]\na file"),
        ("structured", '{"n": 1}'),
    ],
)
def test_what_a_result_says(tools: Tools, kind: str, says: str) -> None:
    assert tools.call(Action("contents", {"kind": kind})) == says


def test_what_a_server_prints_beside_the_protocol_is_passed_over(tools: Tools) -> None:
    assert tools.call(Action("echo", {"value": [1]})) == "[1]"


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (Action("add", {"a": "x", "b": 1}), "Error"),
        (Action("add", {}), "Error"),
        (Action("fail", {}), "Error"),
        (Action("subtract", {}), "Error: there is no tool 'subtract'"),
        (Action("echo", {"value": nested(80)}), "Error: the arguments are nested too deeply"),
        (Action("echo", {"value": 10**40}), "Error: a number in the arguments is too large"),
        (Action("echo", {"value": float("nan")}), "Error: "),
        (Action("echo", {"value": "half \ud800 a pair"}), "Error: "),
    ],
)
def test_the_policys_mistakes_are_observations(tools: Tools, action: Action, says: str) -> None:
    assert tools.call(action).startswith(says)
    assert tools.call(Action("add", {"a": 1, "b": 1})) == "2"


def test_a_server_that_dies_is_the_environments_failure(failing_tools: Tools) -> None:
    with pytest.raises(EnvironmentFailure, match=r"(?s)tool die: .*It said: .*about to die"):
        failing_tools.call(Action("die", {}))
    with pytest.raises(EnvironmentFailure, match="tool add"):
        failing_tools.call(Action("add", {"a": 1, "b": 2}))


def test_a_server_that_hangs_is_the_environments_failure(
    failing_tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CALL_S", 0.5)
    with pytest.raises(EnvironmentFailure, match=r"tool hang: no answer within 0\.5 s"):
        failing_tools.call(Action("hang", {}))


def test_a_line_that_is_no_utf_8_is_passed_over() -> None:
    opened = mcp_server(
        sys.executable, "-c", RUDE.format(r"os.write(1, b'caf\xe9\n')", "0"), str(SERVER)
    )()
    assert opened.call(Action("add", {"a": 1, "b": 2})) == "3"
    opened.close()


def test_a_server_that_stays_at_the_end_of_its_input_ends_with_close() -> None:
    others = servers()
    opened = mcp_server(sys.executable, "-c", RUDE.format("0", "time.sleep(600)"), str(SERVER))()
    assert len(servers()) > len(others)
    opened.close()
    assert servers() == others


def test_a_connection_that_breaks_at_its_end_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    transport = session.Session._transport

    @asynccontextmanager
    async def breaking(opened: session.Session) -> AsyncIterator[object]:
        async with transport(opened) as made:
            try:
                yield made
            finally:
                raise ConnectionError("no answer to the last request")

    monkeypatch.setattr(session.Session, "_transport", breaking)
    mcp_server(*COMMAND)().close()
    gc.collect()  # a task logs its error when it goes
    assert not caplog.records


def test_a_call_after_close_is_the_environments_failure() -> None:
    opened = mcp_server(*COMMAND)()
    opened.close()
    with pytest.raises(EnvironmentFailure, match="tool add: ConnectionError: it has ended"):
        opened.call(Action("add", {"a": 1, "b": 2}))


def test_it_gets_no_secrets_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLQ_REDIS_URL", "redis://:secret@h/0")
    session = mcp_server(*COMMAND, env={"MINE": "1"})()
    names = session.call(Action("variables", {})).split()
    session.close()
    assert "MINE" in names and "ROLLQ_REDIS_URL" not in names


def test_a_server_at_an_address_is_shared(url: str) -> None:
    sessions = [mcp_server(url)() for _ in range(3)]
    for n, opened in enumerate(sessions):
        assert opened.call(Action("add", {"a": n, "b": n})) == str(2 * n)
    for opened in sessions:
        opened.close()
    last = mcp_server(url)()
    assert last.call(Action("add", {"a": 1, "b": 2})) == "3"
    last.close()


@pytest.mark.parametrize(
    "server", [("no-such-command",), (sys.executable, "-c", "0"), ("http://127.0.0.1:1/mcp",)]
)
def test_there_is_no_server(server: tuple[str, ...]) -> None:
    with pytest.raises(EnvironmentFailure, match=f"the MCP server '{server[0]}.*' did not start"):
        mcp_server(*server)()


def test_a_server_without_tools(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(
        "from mcp.server.mcpserver import MCPServer\nMCPServer('none').run()\n"
    )
    with pytest.raises(
        EnvironmentFailure, match=r"did not start: .*(it has no tools|Method not found)"
    ):
        mcp_server(sys.executable, str(tmp_path / "server.py"))()


def odd(kind: str) -> Tools:
    return mcp_server(sys.executable, str(SERVER.with_name("odd_mcp_server.py")), kind)()


def test_an_empty_cursor_leads_to_the_next_page() -> None:
    opened = odd("empty cursor")
    opened.close()
    assert [schema["function"]["name"] for schema in opened.schemas] == ["first", "second"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("same cursor", "does not end: page '8' comes again"),
        ("same name", "has two tools with the name 'first'"),
    ],
)
def test_a_list_of_tools_that_is_none(kind: str, says: str) -> None:
    with pytest.raises(EnvironmentFailure, match=says):
        odd(kind)


def test_a_result_that_is_no_text_is_an_observation() -> None:
    opened = odd("results")
    assert opened.call(Action("first", {"a": 1})) == "Error: the tool's result is not valid Unicode"
    assert opened.call(Action("first", {})) == "a text"
    opened.close()


def test_a_printed_line_that_quotes_a_message_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = odd("log")
    assert opened.call(Action("first", {})) == "a text"
    opened.close()
    assert not caplog.records  # the line may hold a secret


def test_headers_go_with_each_request_to_an_address(url: str) -> None:
    """The server refuses a foreign Host, which shows that it has read it."""
    opened = mcp_server(url, headers={"X-Mine": "1"})()
    assert opened.call(Action("add", {"a": 1, "b": 2})) == "3"
    opened.close()
    with pytest.raises(EnvironmentFailure, match="did not start"):
        mcp_server(url, headers={"Host": "elsewhere.example"})()


def test_a_file_of_several_servers(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIND_OF_SERVER", "results")
    odd_server = {
        "command": sys.executable,
        "args": [str(SERVER.with_name("odd_mcp_server.py")), "${KIND_OF_SERVER:-same name}"],
        "env": {"OTHER": "${NO_SUCH_VARIABLE:-}"},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"odd": odd_server, "sums": {"url": url}}}))
    opened = mcp_servers(path)()
    assert opened.call(Action("first", {})) == "a text"
    assert opened.call(Action("add", {"a": 1, "b": 2})) == "3"
    assert opened.call(Action("subtract", {})) == "Error: there is no tool 'subtract'"
    assert len(opened.call(Action("s" * 10_000, {}))) < 200
    opened.close()
    path.write_text(json.dumps({"mcpServers": {"a": {"url": url}, "b": {"url": url}}}))
    with pytest.raises(EnvironmentFailure, match="two MCP servers have a tool 'add', also 'b'"):
        mcp_servers(path)()


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ({}, "has no server"),
        ({"a": {"command": "x", "disabled": True}}, "disabled of a server is not known"),
        ({"a": {"url": "http://h/sse", "type": "sse"}}, "type is stdio or http"),
        ({"a": {"args": []}}, "has a command or a url"),
        ({"a": {"command": "x", "url": "http://h/mcp"}}, "has a command or a url"),
        ({"a": {"command": "${NO_SUCH_VARIABLE}"}}, "set NO_SUCH_VARIABLE in the worker's"),
        ({"a": {"command": "x", "args": "server.py"}}, "args are a list"),
        ({"a": {"command": "x", "args": [1]}}, "values of a server are texts"),
        ({"a": {"command": "x", "env": {"PORT": 1}}}, "values of a server are texts"),
        ({"a": {"command": "x", "headers": {"A": "b"}}}, "headers with an address only"),
        ({"a": {"url": "http://h/mcp", "args": ["x"]}}, "an address alone"),
        ({"a": {"url": "http://h/mcp", "env": {"A": "b"}}}, "an address alone"),
        ({"a": {"url": "h/mcp"}}, "begins with http"),
        ([], "is not a file of MCP servers"),
    ],
)
def test_a_file_that_names_no_servers(tmp_path: Path, servers: object, says: str) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    with pytest.raises(JobFailure, match=says):
        mcp_servers(tmp_path / "mcp.json")


def test_servers_that_stay_at_the_end_of_their_input_end_together(tmp_path: Path) -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = RUDE.format(ignore, "time.sleep(600)")
    stubborn = {"command": sys.executable, "args": ["-c", code, str(SERVER)]}
    odd_server = str(SERVER.with_name("odd_mcp_server.py"))
    other = {"command": sys.executable, "args": ["-c", code, "results", odd_server]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"a": stubborn, "b": other}}))
    opened = mcp_servers(tmp_path / "mcp.json")()
    began = time.monotonic()
    opened.close()
    assert time.monotonic() - began < 1.5 * session.CLOSE_S


def test_without_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    session._sdk.cache_clear()
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(JobFailure, match=r"need the package mcp: pip install .*\[mcp\]"):
        mcp_server(*COMMAND)()


def test_an_address_is_shown_without_its_secrets() -> None:
    with pytest.raises(EnvironmentFailure, match="did not start") as failed:
        mcp_server("http://me:hunter2@127.0.0.1:1/mcp?token=hunter2")()
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize("value", ["Bearer hunter2\n", " hunter2", "hunter2é", "hunter2\0"])
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(url: str, value: str) -> None:
    with pytest.raises(JobFailure, match="the header 'Authorization' of an MCP server") as failed:
        mcp_server(url, headers={"Authorization": value})()
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize("server", [(), ("http://127.0.0.1:1/mcp", "more")])
def test_what_names_no_server(server: tuple[str, ...]) -> None:
    with pytest.raises(JobFailure, match="mcp_server"):
        mcp_server(*server)


def test_a_dataset_with_tools_is_played_and_its_servers_end(tmp_path: Path) -> None:
    row = {"prompt": "1+2?", "answer": 3, "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    (tmp_path / "sums.jsonl").write_text(json.dumps(row))
    domain = dataset(tmp_path / "sums.jsonl", reward="number", tools=mcp_server(*COMMAND))(None)
    others = len(servers())
    environment = domain.open("train", 0, {})
    assert len(servers()) > others
    assert environment.reset(FakeUser(["1+2?"])) == "1+2?"
    assert environment.step(Action("add", {"a": 1, "b": 2})).text == "3"
    environment.step(respond("3"))
    assert environment.grade().reward == 1.0
    environment.close()
    assert len(servers()) <= others
