"""odd_mcp_server.py KIND: an odd MCP server over stdio, without the SDK."""

import json
import sys
import time
from typing import Any


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": "d", "inputSchema": {"type": "object"}}


def page_of(kind: str, cursor: str | None) -> dict[str, Any]:
    """The page of the list of tools behind a cursor."""
    if kind == "empty cursor" and cursor is None:
        return {"tools": [tool("first")], "nextCursor": ""}
    if kind == "empty cursor":
        return {"tools": [tool("second")]}
    if kind == "same cursor":
        return {"tools": [tool("first")], "nextCursor": "8"}
    if kind == "same name":
        return {"tools": [tool("first"), tool("first")]}
    return {"tools": [tool("first")]}


def result_of(kind: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
        return {"result": {"protocolVersion": params["protocolVersion"], **about}}
    if method == "tools/list":
        return {"result": page_of(kind, params.get("cursor"))}
    if method == "tools/call" and kind == "log":
        print('received: {"jsonrpc": "2.0", "id": 1}', flush=True)
        print(json.dumps({"level": "info", "sent": '"jsonrpc"'}), flush=True)
        time.sleep(0.3)
    if method == "tools/call":
        text = "half a pair \ud83d" if params.get("arguments") else "a text"
        return {"result": {"content": [{"type": "text", "text": text}]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = result_of(sys.argv[1], request["method"], request.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **result}), flush=True)
