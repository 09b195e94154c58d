"""An environment of verifiers: a task for each letter, two turns, and a share of the reward for each reply with it.

Its agent has a name of its own, as those of TextArena have.
"""

import openai
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

__all__ = ["LettersTaskset", "SpellingEnv", "TalkHarness"]


class Letter(vf.TaskData):
    answer: str = ""


class LetterTask(vf.Task[Letter]):
    @vf.reward
    async def letters(self, trace) -> float:
        if self.data.answer == "j":
            raise ValueError("j has no reward")
        return sum(self.data.answer in (node.message.content or "") for node in trace.nodes if node.sampled) / 2


class LettersConfig(vf.TasksetConfig):
    letters: str = "abc"


class SpellingConfig(vf.EnvConfig):
    speller: vf.AgentConfig = vf.AgentConfig()


class SpellingEnv(vf.Env[SpellingConfig]):
    async def run(self, task, agents):
        await agents.speller.run(task)


class LettersTaskset(vf.Taskset[LetterTask, LettersConfig]):
    def load(self):
        for letter in self.config.letters:
            yield LetterTask(Letter(prompt=f"Say {letter}.", system_prompt="Spell.", answer=letter), self.config.task)


class TalkHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        print("the harness prints")
        system, prompt = self.resolve_prompt(data)
        chat = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            for _ in range(2):
                answer = await client.chat.completions.create(model=ctx.model, messages=chat)
                chat.append({"role": "assistant", "content": answer.choices[0].message.content})
                chat.append({"role": "user", "content": "Again."})
        return ProgramResult(exit_code=0, stdout="", stderr="")
