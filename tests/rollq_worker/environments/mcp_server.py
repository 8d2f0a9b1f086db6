"""An MCP server for tests: stdio, or streamable HTTP on the port that it is given."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

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
def variables() -> str:
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
