"""The tools of a task of verifiers.

The package runs each toolset as a server that shares the episode's state over HTTP. Here they are
objects of the episode, and the state goes through the same checks.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from rollq.env import Action, Json
from rollq.errors import JobFailure


class Toolsets:
    """The tools of one episode, for the loop that opens them."""

    def __init__(self, task: Any, trace: Any) -> None:
        self._data = task.data
        self._trace = trace
        self._toolsets = type(task).toolsets(task.config)
        self._tools: dict[str, tuple[Any, str]] = {}
        """Server of each name that the policy sees, and the name there."""

    async def open(self) -> list[Json]:
        """Sets the toolsets up and returns the schemas of their tools. Raises JobFailure for two
        tools of one name.
        """
        schemas: list[Json] = []
        for toolset in self._toolsets:
            toolset._pull_state = self._pull(toolset)
            toolset._push_state = self._push(toolset)
            await toolset.setup()
            await toolset.setup_task(self._data)
            server = _mcp().MCPServer(toolset.server_name or type(toolset).__name__)
            toolset.register(server)
            for tool in await server.list_tools():
                name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
                if name in self._tools:
                    raise JobFailure(
                        f"two tools are called {name!r}; give the toolsets of the task "
                        "different prefixes"
                    )
                self._tools[name] = (server, tool.name)
                function = {
                    "name": name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                }
                schemas.append({"type": "function", "function": function})
        return schemas

    async def call(self, action: Action) -> str:
        if action.name not in self._tools:
            return f"error: unknown tool {action.name!r:.80}"
        server, name = self._tools[action.name]
        try:
            result = await server.call_tool(name, dict(action.arguments))
        except _mcp().exceptions.ToolError as e:
            return str(e)
        return "\n".join(map(_as_text, result.content))

    async def close(self) -> None:
        for toolset in self._toolsets:
            await toolset._exit_stack.aclose()

    def _pull(self, toolset: Any) -> Callable[[], Coroutine[Any, Any, Any]]:
        async def pull() -> Any:
            return toolset._state_adapter.validate_json(self._trace.state.model_dump_json())

        return pull

    def _push(self, toolset: Any) -> Callable[[bytes], Coroutine[Any, Any, None]]:
        async def push(before: bytes) -> None:
            after = toolset._state_adapter.dump_json(toolset.state)
            if after != before:
                self._trace.state = type(self._trace.state).model_validate_json(after)

        return push


def _as_text(part: Any) -> str:
    text = getattr(part, "text", None)
    return text if isinstance(text, str) else f"[{part.type}]"


def _mcp() -> Any:
    from mcp.server import mcpserver

    return mcpserver
