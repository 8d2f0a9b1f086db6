"""Tools of the servers in an `mcpServers` file, in the form that Claude Code, Cursor and others
read.

    {"mcpServers": {"sums": {"command": "python", "args": ["server.py"], "env": {"KEY": "${KEY}"}},
                    "docs": {"url": "https://host/mcp", "headers": {"Authorization": "..."}}}}

`${NAME}` in a value is a variable of the worker's, `${NAME:-default}` one that may be missing. It
does not know how a server is reached.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rollq.env import Action, Json, Tools
from rollq.errors import EnvironmentFailure, JobFailure
from rollq_integrations.mcp.session import mcp_server

FIELDS = {"type", "command", "args", "env", "url", "headers"}
TYPES = ("stdio", "http", "streamable-http")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def mcp_servers(file: str | Path) -> Callable[[], Tools]:
    """Opens the tools of all servers in a file. A server's name is not a part of its tools' names.

    Raises JobFailure for a file that cannot be read, and for a field of a server that is not known,
    has no such value or does not belong to its kind of server.
    """
    try:
        servers = json.loads(Path(file).read_text("utf-8-sig"))["mcpServers"]
        openers = {name: _opener(_with_variables(server)) for name, server in servers.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise JobFailure(f"{file} is not a file of MCP servers: {type(e).__name__}: {e}") from e
    if not openers:
        raise JobFailure(f"{file} has no server in mcpServers")
    return lambda: SeveralTools(openers)


def _with_variables(value: Any) -> Any:
    """A copy with the worker's variables in place of their names. Raises ValueError for one that is
    not set and has no default.
    """
    if isinstance(value, dict):
        return {name: _with_variables(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_variables(part) for part in value]
    if isinstance(value, str):
        return _VARIABLE.sub(_variable, value)
    return value


def _variable(reference: "re.Match[str]") -> str:
    name, default = reference.groups()
    value = os.environ.get(name, default)
    if value is None:
        raise ValueError(f"set {name} in the worker's environment")
    return str(value)


def _opener(server: Mapping[str, Any]) -> Callable[[], Tools]:
    unknown = sorted(set(server) - FIELDS)
    if unknown:
        raise ValueError(f"{', '.join(unknown)} of a server is not known")
    if server.get("type", "stdio") not in TYPES:
        raise ValueError(f"a server's type is {' or '.join(TYPES)}, not {server['type']!r}")
    args = server.get("args", [])
    env = server.get("env", {})
    headers = server.get("headers", {})
    if not isinstance(args, list) or not isinstance(env, dict) or not isinstance(headers, dict):
        raise TypeError("a server's args are a list, its env and headers are objects")
    values = [server.get("command", ""), server.get("url", "")]
    values += [*args, *env.values(), *headers.values()]
    if not all(isinstance(value, str) for value in values):
        raise TypeError("the values of a server are texts")
    if ("url" in server) == ("command" in server):
        raise ValueError("a server has a command or a url")
    if "url" not in server:
        return mcp_server(server["command"], *args, env=env, headers=headers)
    if not server["url"].startswith(("http://", "https://")):
        raise ValueError("a server's url begins with http:// or https://")
    return mcp_server(server["url"], *args, env=env, headers=headers)


class SeveralTools:
    """Implements Tools with those of several servers."""

    def __init__(self, openers: Mapping[str, Callable[[], Tools]]) -> None:
        """Raises EnvironmentFailure if two servers have a tool of one name."""
        self.schemas: Sequence[Json] = []
        self._opened: list[Tools] = []
        self._by_name: dict[str, Tools] = {}
        try:
            for name, opener in openers.items():
                self._add(name, opener())
        except BaseException:
            self.close()
            raise

    def _add(self, server: str, tools: Tools) -> None:
        self._opened.append(tools)
        for schema in tools.schemas:
            name = schema["function"]["name"]
            if name in self._by_name:
                raise EnvironmentFailure(f"two MCP servers have a tool {name!r}, also {server!r}")
            self._by_name[name] = tools
        self.schemas = [*self.schemas, *tools.schemas]

    def call(self, action: Action) -> str:
        tools = self._by_name.get(action.name)
        if tools is None:
            return f"Error: there is no tool {action.name!r:.80}"
        return tools.call(action)

    def close(self) -> None:
        """All at once, because each may take as long as an environment has to close."""
        with ThreadPoolExecutor(max(1, len(self._opened))) as threads:
            for tools in self._opened:
                threads.submit(tools.close)
