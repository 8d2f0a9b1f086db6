"""Tools of MCP servers, by the official SDK: `dataset(..., tools=mcp_server("python",
"server.py"))`.
"""

from rollq_integrations.mcp.servers_file import mcp_servers
from rollq_integrations.mcp.session import mcp_server

__all__ = ["mcp_server", "mcp_servers"]
