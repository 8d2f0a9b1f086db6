"""An MCP server for tests: stdio, or streamable HTTP on the port that it is given."""

import json
import os
import sys
import time
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.types import (
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

server = MCPServer("adder")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    raise ValueError("no luck")


@server.tool()
def die() -> str:
    print("about to die", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def hang() -> str:
    time.sleep(3600)
    return ""


@server.tool()
def contents(kind: str) -> CallToolResult:
    picture = ImageContent(type="image", data="iVBORw0K", mime_type="image/png")
    inside = EmbeddedResource(
        type="resource", resource=TextResourceContents(uri="file:///x", text="a file")
    )
    said = {
        "nothing": [],
        "blank": [TextContent(type="text", text="")],
        "several": [TextContent(type="text", text="one"), picture, inside],
    }
    if kind == "structured":
        return CallToolResult(content=[], structured_content={"n": 1})
    return CallToolResult(content=said[kind])


@server.tool()
def echo(value: Any) -> str:
    """Says what it got, and says something on stdout, which is for the protocol."""
    print("not for you", flush=True)
    return json.dumps(value)


@server.tool()
def variables() -> str:
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
