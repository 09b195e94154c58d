"""LLaMA-Factory: ShareGPT files, `dataset_info.json`, a YAML for each way to train (checked with its version 0.9.5).

Turns alternate: `human` or `observation`, `gpt` or `function_call`; policy and tools are columns. A `function_call` is
JSON, of one call or a list; where it says something too, that stands before a `<tool_call>` around the JSON. The
letter `<` is written as an escape in that JSON, because LLaMA-Factory looks for marks in it. Results of several calls
are one observation, which is what the model's own template would make of them where the observation is one text
between `<tool_response>` marks (`JOINING`); elsewhere such turns cannot be held, and are split or left out.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from understudy.data.conversations import CALLS, CALLS_END, JOIN, Lesson
from understudy.data.export import DPO, KTO, SFT, Unfit, each_reply, first_difference, last_reply
from understudy.data.preferences import Demonstration, Preference
from understudy.errors import ConfigError
from understudy.formats.jinja import source
from understudy.messages import Message, ToolSpec, spec_to_wire
from understudy.models import MODELS, find_model
from understudy.records import Record

JOINING = frozenset({"bailing_v2", "qwen", "qwen3", "qwen3_nothink", "qwen3_5", "qwen3_5_nothink", "qwen3_6", "mimo"})
"""Templates whose observation is one text between `<tool_response>` marks."""
IN_ITS_OWN_WORDS = frozenset({"smollm2", "gemma3", "phi4", "phi4_mini", "gpt_oss", "deepseek3", "granite4"})
"""Templates for which LLaMA-Factory tells of tools in its own words ("Action: …"), and not as the model's template."""
_BY_NAME = {
    r"qwen3\.6": "qwen3_6",
    r"qwen3\.5": "qwen3_5",
    r"qwen3-(?!.*(vl|omni|coder)).*instruct": "qwen3_nothink",
    r"qwen3-(?!.*(vl|omni|coder))": "qwen3",
    r"qwen(1\.5|2|2\.5)-(?!.*(vl|omni|audio|coder-.*base))": "qwen",
    r"llama-4": "llama4",
    r"llama-3(?!.*vision)": "llama3",
    r"(mistral|devstral)-small": "mistral_small",
    r"mistral-nemo": "ministral",
    r"(?<!next-)mistral-7b": "mistral",
    r"smollm2": "smollm2",
    r"glm-4\.7": "glm4_7",
    r"glm-4\.5(?!v)": "glm4_moe",
    r"gpt-oss": "gpt_oss",
    r"gemma-3-(4|12|27)b": "gemma3",
    r"phi-4-mini": "phi4_mini",
    r"phi-4(?!-)": "phi4",
    r"deepseek-v3": "deepseek3",
    r"granite-4": "granite4",
}
"""LLaMA-Factory's templates by the names that models have on Hugging Face."""
_WHOLE = re.compile(r"(?<=^\d)e")
_AROUND = 64  # bytes that a template puts around a turn, at most

Tag = Literal["human", "gpt", "function_call", "observation"]


class Turn(Record):
    """One turn."""

    from_: Tag = Field(serialization_alias="from")
    value: str


class Imitated(Record):
    """A row of `sft.jsonl`."""

    conversations: tuple[Turn, ...]
    system: str
    tools: str
    """JSON, "" where there are none."""


class Compared(Imitated):
    """A row of `dpo.jsonl`."""

    chosen: Turn
    rejected: Turn


class Tagged(Imitated):
    """A row of `kto.jsonl`."""

    kto_tag: bool


@dataclass
class LlamaFactory:
    """Writes for one model and template; `split` tells several calls of a turn one after the other, with their results.

    `cutoff` is the YAML's `cutoff_len`; 0 takes the bytes of the longest conversation, which its tokens cannot exceed.
    """

    model: str
    template: str
    split: bool = False
    cutoff: int = 0
    splits: int = field(default=0, init=False)
    """Turns that were split so far."""
    longest: int = field(default=0, init=False)

    def rows(self, lesson: Lesson) -> Iterator[tuple[str, Record]]:
        """The rows of a conversation."""
        for name, row in self._rows(lesson):
            size = len(row.model_dump_json().encode()) + len(row.tools) + _AROUND * len(row.conversations)
            self.longest = max(self.longest, size)
            yield name, row

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """`dataset_info.json`, and the YAML of each way to train on the files that there are."""
        info = {_dataset(name): _info(name) for name in (SFT, DPO, KTO) if name in counts}
        made = {"dataset_info.json": json.dumps(info, indent=2) + "\n"}
        cutoff = self.cutoff or -(-self.longest // 256) * 256
        for name in counts:
            for how in ("lora", "full", "qlora") if name == SFT else ("lora",):
                made[f"{_stage(name)}_{how}.yaml"] = self._training(name, how, cutoff)
            made[f"{_stage(name)}_merge.yaml"] = self._merging(name)
        return made

    def notes(self) -> Sequence[str]:
        """Turns that were split, and a template that tells of tools in another way than understudy."""
        split = f"split: {self.splits:,} turns with several calls"
        words = f"template {self.template} tells of tools in LLaMA-Factory's own words, and not as training here does"
        return [*([split] if self.splits else []), *([words] if self.template in IN_ITS_OWN_WORDS else [])]

    def _rows(self, lesson: Lesson) -> Iterator[tuple[str, Imitated]]:
        if isinstance(lesson, Demonstration):
            yield SFT, Imitated(**self._whole(*last_reply(lesson.messages), lesson.tools))
        elif isinstance(lesson, Preference):
            before, chosen, rejected = first_difference(lesson)
            turns = {"chosen": _reply(chosen), "rejected": _reply(rejected)}
            yield DPO, Compared(**self._before(before, lesson.tools), **turns)
        else:
            for before, reply in each_reply(lesson):
                yield KTO, Tagged(**self._whole(before, reply, lesson.tools), kto_tag=lesson.wanted)

    def _whole(self, before: Sequence[Message], reply: Message, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """The columns of a conversation that ends with a reply."""
        columns = self._before(before, tools)
        return columns | {"conversations": (*columns["conversations"], _reply(reply))}

    def _before(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """The columns of what stands before a reply."""
        own = bool(messages) and messages[0].role == "system"
        if own and not messages[0].content:
            raise Unfit("an empty policy, which would become the template's own")
        turns = tuple(self._turns(messages[own:]))
        expected = [("human", "observation"), ("gpt", "function_call")]
        if len(turns) % 2 != 1 or any(turn.from_ not in expected[i % 2] for i, turn in enumerate(turns)):
            raise Unfit("turns that do not alternate")
        system, told = messages[0].content if own else "", json.dumps([spec_to_wire(tool) for tool in tools])
        return {"conversations": turns, "system": system, "tools": told if tools else ""}

    def _turns(self, messages: Sequence[Message]) -> Iterator[Turn]:
        at = 0
        while at < len(messages):
            message = messages[at]
            results = [m.content for m in messages[at + 1 : at + 1 + len(message.tool_calls)]]
            at += 1
            if message.role == "system":
                raise Unfit("a policy in the middle")
            if message.role == "user":
                yield Turn(from_="human", value=message.content)
            elif not message.tool_calls:
                yield _reply(message)
            else:
                at += len(results)
                yield from self._called(message, results)

    def _called(self, message: Message, results: Sequence[str]) -> Iterator[Turn]:
        """A reply with calls, and what they came to."""
        if len(results) == 1 or self.template in JOINING:
            if len(results) > 1 and any(JOIN in result for result in results):
                raise Unfit("results with the text that is put between results")
            yield _reply(message)
            yield Turn(from_="observation", value=JOIN.join(results))
            return
        if not self.split:
            raise Unfit(
                f"several calls in a turn, which template {self.template} cannot hold (--split-calls splits them)"
            )
        self.splits += 1
        for place, (call, result) in enumerate(zip(message.tool_calls, results, strict=True)):
            yield _reply(message.replace(content="" if place else message.content, tool_calls=(call,)))
            yield Turn(from_="observation", value=result)

    def _training(self, name: str, how: str, cutoff: int) -> str:
        stage = _stage(name)
        values = {
            "model_name_or_path": self.model,
            "stage": stage,
            "do_train": True,
            "finetuning_type": "full" if how == "full" else "lora",
            **({} if how == "full" else {"lora_rank": 32, "lora_alpha": 64, "lora_target": "all"}),
            **({"quantization_bit": 4, "quantization_method": "bnb"} if how == "qlora" else {}),
            **({} if name == SFT else {"pref_beta": 0.1}),
            **({"pref_loss": "sigmoid"} if name == DPO else {}),
            "dataset_dir": ".",
            "dataset": _dataset(name),
            "template": self.template,
            "enable_thinking": False,
            "cutoff_len": cutoff,
            "output_dir": f"saves/{stage}_{how}",
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 8,
            "learning_rate": {"full": 1e-5}.get(how, 1e-4 if name == SFT else 5e-6),
            "num_train_epochs": 3.0,
            "lr_scheduler_type": "cosine",
            "bf16": True,
            "logging_steps": 10,
            "save_steps": 500,
            "report_to": "none",
        }
        return _yaml(f"llamafactory-cli train {stage}_{how}.yaml", values)

    def _merging(self, name: str) -> str:
        values = {
            "model_name_or_path": self.model,
            "adapter_name_or_path": f"saves/{_stage(name)}_lora",
            "template": self.template,
            "export_dir": f"saves/{_stage(name)}_merged",
            "export_device": "cpu",
        }
        return _yaml(f"llamafactory-cli export {_stage(name)}_merge.yaml", values)


def template_of(model: str, template: str = "") -> tuple[str, str]:
    """What to call a model in a YAML, and LLaMA-Factory's template for it: as given, by its chat template, by its name.

    Only a model that is on this machine is looked at; none is downloaded.
    """
    if model in MODELS or Path(model).expanduser().is_dir():
        folder = find_model(model)
        found = template or _by_text(source(folder)) or _by_name(folder.resolve().name, model)
        return str(folder.resolve()), found
    return model, template or _by_name(model, model)


def _by_text(text: str) -> str:
    """The template for a chat template that says what it is, else ""."""
    if '{"name": <function-name>' in text and "<|im_start|>" in text:
        thinks = "enable_thinking" in text or "<think>" in text
        return "qwen3" if thinks else "qwen" if "You are Qwen" in text else "qwen3_nothink"
    if "<|start_header_id|>" in text:
        return "llama3"
    return "smollm2" if "<|im_start|>" in text and "tool" not in text else ""


def _by_name(name: str, model: str) -> str:
    for pattern, template in _BY_NAME.items():
        if re.search(pattern, name.lower()):
            return template
    raise ConfigError(f"no template of LLaMA-Factory is known for model {model!r}; give --template NAME")


def _reply(message: Message) -> Turn:
    if not message.tool_calls:
        return Turn(from_="gpt", value=message.content)
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    text = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False).replace("<", "\\u003c")
    if not message.content:
        return Turn(from_="function_call", value=text)
    if CALLS in message.content:
        raise Unfit(f"replies that say {CALLS} beside their calls")
    return Turn(from_="function_call", value=f"{message.content}\n{CALLS}{text}{CALLS_END}")


def _dataset(name: str) -> str:
    return f"understudy_{_stage(name)}"


def _stage(name: str) -> str:
    return name.removesuffix(".jsonl")


def _info(name: str) -> dict[str, Any]:
    """The entry of `dataset_info.json` for a file."""
    columns = {"messages": "conversations", "system": "system", "tools": "tools"}
    columns |= {"chosen": "chosen", "rejected": "rejected"} if name == DPO else {}
    columns |= {"kto_tag": "kto_tag"} if name == KTO else {}
    ranking = {"ranking": True} if name == DPO else {}
    return {"file_name": name, "formatting": "sharegpt", **ranking, "columns": columns}


def _yaml(command: str, values: Mapping[str, Any]) -> str:
    """A flat YAML. JSON's scalars are YAML's, but for numbers such as 1e-05, which YAML 1.1 reads as text."""
    lines = (f"{key}: {_WHOLE.sub('.0e', json.dumps(value))}" for key, value in values.items())
    return "\n".join([f"# In this folder: {command}", *lines]) + "\n"
