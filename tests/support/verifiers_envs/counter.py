"""An environment of verifiers with a tool that has state. A task pays 1 if the counter is right, else -1."""

import json

import openai
import verifiers.v1 as vf
from mcp import Client
from verifiers.v1.runtimes import ProgramResult

__all__ = ["Counter", "CounterTaskset", "ToolHarness"]


class Total(vf.State):
    total: int = 0


class Counter(vf.Toolset[vf.ToolsetConfig, Total]):
    @vf.tool
    async def add(self, n: int) -> str:
        """Add to the counter."""
        self.state.total += n
        return str(self.state.total)


class CounterTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class CounterTask(vf.Task[vf.TaskData, Total, CounterTaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Counter(config.tools)]

    @vf.reward
    async def counted(self, trace) -> float:
        return 1.0 if trace.state.total == 7 else -1.0


class CounterConfig(vf.TasksetConfig):
    task: CounterTaskConfig = CounterTaskConfig()


class CounterTaskset(vf.Taskset[CounterTask, CounterConfig]):
    def load(self):
        for start in range(10):
            yield CounterTask(vf.TaskData(prompt=f"Count to 7, {start}."), self.config.task)


class ToolHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        chat = [{"role": "user", "content": data.prompt}]
        (url,) = mcp_urls.values()
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret) as client, Client(url) as tools:
            listed = [
                {"type": "function", "function": {"name": tool.name, "parameters": tool.input_schema}}
                for tool in (await tools.list_tools()).tools
            ]
            for _ in range(4):
                answer = await client.chat.completions.create(model=ctx.model, messages=chat, tools=listed)
                message = answer.choices[0].message
                chat.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls or ():
                    result = await tools.call_tool(call.function.name, json.loads(call.function.arguments))
                    chat.append({"role": "tool", "tool_call_id": call.id, "content": result.content[0].text})
                if not message.tool_calls or trace.state.total == 7:
                    break
        return ProgramResult(exit_code=0, stdout="", stderr="")


if __name__ == "__main__":
    Counter.run()  # verifiers starts a tool server as `python -m MODULE`
