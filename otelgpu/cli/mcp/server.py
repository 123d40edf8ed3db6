"""The protocol, by the official SDK: tools are listed, called one at a time in a thread, and answered as data."""

from __future__ import annotations

import secrets
from typing import Any, Final

import anyio.to_thread
import msgspec
from anyio import CapacityLimiter
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool

from otelgpu import __version__
from otelgpu.cli.mcp.answers import NOTICE
from otelgpu.cli.mcp.tools import INSTRUCTIONS, Tool, Toolbox
from otelgpu.cli.mcp.untrusted import name
from otelgpu.errors import OtelgpuError

NAME: Final = "otelgpu"


def make_server(toolbox: Toolbox) -> Server[Any]:
    """A server without resources, prompts or anything else that it would ask of a client."""
    one_at_a_time = CapacityLimiter(1)
    listed = ListToolsResult(tools=[_listed(tool) for tool in toolbox.tools.values()])

    async def list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        return listed

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        if params.name not in toolbox.tools:
            raise MCPError(INVALID_PARAMS, f"there is no tool {name(params.name)!r}")
        try:
            given = await anyio.to_thread.run_sync(
                toolbox.call, params.name, params.arguments, limiter=one_at_a_time
            )
        except OtelgpuError as error:
            return CallToolResult(content=[_text(str(error))], is_error=True)
        return CallToolResult(
            content=[_text(as_data(msgspec.json.encode(given).decode()))], structured_content=given
        )

    return Server(
        NAME,
        version=__version__,
        title="otelgpu",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def as_data(text: str) -> str:
    """A text for a model, between marks that nothing in it can end: they are different each time."""
    mark = f"recorded-data-{secrets.token_hex(8)}"
    return f"{NOTICE}\n<{mark}>\n{text}\n</{mark}>"


def _listed(tool: Tool) -> ListedTool:
    return ListedTool(
        name=tool.name,
        title=tool.title,
        description=tool.text,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=not tool.observes,
            destructive_hint=False,
            idempotent_hint=not tool.observes,
            open_world_hint=False,
        ),
    )


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)
