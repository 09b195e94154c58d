"""The prompt that asks a language model for a call plan, and the parser of its reply.

The model sees the tools and what an exploration has read, and proposes a request, calls and the places of the facts.
Its reply is data: it is parsed as JSON and validated. It may call only the tools that the agent has, and may name only
those URLs and file paths that the prompt shows.
"""

import json
import re
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import from_json

from understudy.core.items import row_error_from_validation
from understudy.core.messages import Message, tool_to_openai
from understudy.core.tasks import Difficulty, Task
from understudy.data.evidence import leaf_texts
from understudy.data.synthesis.call_plan import CallPlan, TaskLabels, build_planned_task, call_range
from understudy.data.synthesis.explore import Exploration, Observation
from understudy.data.synthesis.proposal import json_object
from understudy.data.verify import TaskIssue

FAMILY = "proposed"
"""The family of tasks that a model proposes for a source whose tasks have no families of their own."""
MAX_OBSERVATIONS = 24
MAX_OBSERVATION_CHARACTERS = 700
_PLACE = re.compile(r"://|^(?:[/~]|\.\.?[/\\]|[A-Za-z]:[\\/])")
"""Words that name a host or a file."""

_ASK = """\
You write tasks that train an assistant which talks to users and calls tools. A program runs every call of your task on
the real tools, and your task is thrown away unless all of them work.

# What the assistant is told
{domain_policy}

# Its tools
{tools}

# Your reply
One JSON object and nothing else, by this schema. `prompt` is the user's only message, in the words of a user who does
not see the tools. `calls` are the assistant's calls in order, with complete arguments. `facts` are the places in the
results of what the assistant has to tell. `answer` is its last text, with {{1}}, {{2}}, … in place of the facts. A task
without facts must change something.
{schema}
"""

_ABOUT = """\
# What some calls return
{observations}

{example}# What to write
A new task of {least} to {most} calls with at most {tools} different tools, about the data above, that asks for
something else than the examples. {reads}The prompt must not contain the facts. Name no URL and no file that is not
shown above.
"""


@dataclass(frozen=True)
class CallProposalRequest:
    """The request for a task about what an exploration has read."""

    number: int
    exploration: Exploration
    example: Task | None
    difficulty: Difficulty
    max_calls: int
    max_tools: int
    min_reads: int
    seed: int

    def messages(self) -> tuple[Message, Message]:
        """Return the prompt."""
        source = self.exploration.source
        ask = _ASK.format(
            domain_policy=source.domain_policy,
            tools="\n".join(json.dumps(tool_to_openai(spec)) for spec in source.tool_specs),
            schema=json.dumps(CallPlan.model_json_schema()),
        )
        least, most = call_range(self.difficulty)
        about = _ABOUT.format(
            observations="\n".join(map(_observation_line, self._observations())),
            example=f"# A task, as an example\n{self._example_line()}\n\n" if self.example else "",
            least=least,
            most=min(most, self.max_calls),
            tools=self.max_tools,
            reads=f"It must need the results of at least {self.min_reads} reads. " if self.min_reads else "",
        )
        return Message(role="system", content=ask), Message(role="user", content=about)

    @property
    def sampling_seed(self) -> int:
        """The seed of the model's reply."""
        return self.seed * 1_000_003 + self.number

    async def read_reply(self, reply: str) -> Task | TaskIssue:
        """Return the proposed task after its calls have run, or what is wrong with the reply."""
        try:
            value = from_json(json_object(reply), allow_inf_nan=False)
        except ValueError as e:
            return TaskIssue("unreadable", "", f"the reply holds no JSON object: {e}")
        try:
            plan = CallPlan.model_validate(value)
        except ValidationError as e:
            bad = row_error_from_validation("", e)
            return TaskIssue("malformed", bad.field, bad.problem)
        return self._find_issue(plan) or await build_planned_task(self.exploration.source, plan, self._labels())

    def _find_issue(self, plan: CallPlan) -> TaskIssue | None:
        least, most = call_range(self.difficulty)
        if not least <= len(plan.calls) <= min(most, self.max_calls):
            problem = f"it has {len(plan.calls)} calls; {least} to {min(most, self.max_calls)} are asked for"
            return TaskIssue("too long" if len(plan.calls) > self.max_calls else "other difficulty", "calls", problem)
        allowed_tools = {spec.name for spec in self.exploration.source.tool_specs}
        for number, call in enumerate(plan.calls):
            if call.tool not in allowed_tools:
                return TaskIssue("unknown tool", f"calls.{number}", f"{call.tool!r} is none of the assistant's tools")
            for word in (word.strip("\"'(),.;") for text in leaf_texts(call.arguments) for word in text.split()):
                if _PLACE.search(word) and word not in self.exploration.shown:
                    return TaskIssue("hidden rows", f"calls.{number}", f"it names {word!r}, which was not shown")
        return None

    def _labels(self) -> TaskLabels:
        found, family = self.exploration, self.example.family if self.example else FAMILY
        identity = f"{found.source.name}/{found.split}/{family}/{self.difficulty}/model-{self.seed}-{self.number}"
        return TaskLabels(id=identity, split=found.split, family=family)

    def _observations(self) -> list[Observation]:
        """Return the observations to show: others in each request."""
        every = self.exploration.observations
        start = self.number * MAX_OBSERVATIONS % len(every) if every else 0
        return [*every[start:], *every[:start]][:MAX_OBSERVATIONS]

    def _example_line(self) -> str:
        assert self.example is not None
        calls = [{"tool": call.name, "arguments": call.arguments} for call in self.example.gold_calls]
        last = self.example.gold_turns[-1].content if self.example.gold_turns else ""
        return json.dumps({"prompt": self.example.scenario.instructions, "calls": calls, "last text": last})


def _observation_line(observed: Observation) -> str:
    result = observed.result
    if len(result) > MAX_OBSERVATION_CHARACTERS:
        result = f"{result[:MAX_OBSERVATION_CHARACTERS]} […]"
    return f"{observed.call.name}({json.dumps(observed.call.arguments)}) returns {result}"
