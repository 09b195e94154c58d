"""LLaMA-Factory: ShareGPT files, `dataset_info.json`, and a YAML for each command (tested with version 0.9.5).

Turns alternate between `human` or `observation` and `gpt` or `function_call`; policy and tools are columns. A
`function_call` is JSON of one call or a list. If the reply also has text, the text comes first and the JSON is enclosed
in `<tool_call>`. In that JSON, `<` is escaped, because LLaMA-Factory searches it for tags. Results of several calls are
merged into one observation if the template writes an observation as one text between `<tool_response>` tags
(`MERGED_OBSERVATION_TEMPLATES`). The text is then the same as in the model's own chat template. For other templates,
turns with several calls are split or left out.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from understudy.core.errors import ConfigError
from understudy.core.messages import Message, ToolSpec, tool_to_openai
from understudy.core.records import Record
from understudy.data.conversations.conversations import TrainingExample
from understudy.data.conversations.examples import Demonstration, PreferencePair
from understudy.data.conversations.export import (
    DPO_FILE,
    KTO_FILE,
    SFT_FILE,
    UnsupportedExample,
    iter_replies,
    split_first_difference,
    split_last_reply,
)
from understudy.engines.models import MODELS, find_model
from understudy.formats.jinja import read_chat_template
from understudy.sources.sharegpt import RESULT_SEPARATOR, TOOL_CALL_END, TOOL_CALL_START

MERGED_OBSERVATION_TEMPLATES = frozenset(
    {"bailing_v2", "qwen", "qwen3", "qwen3_nothink", "qwen3_5", "qwen3_5_nothink", "qwen3_6", "mimo"}
)
"""Templates whose observation is one text between `<tool_response>` tags."""
GENERIC_TOOL_TEMPLATES = frozenset({"smollm2", "gemma3", "phi4", "phi4_mini", "gpt_oss", "deepseek3", "granite4"})
"""Templates for which LLaMA-Factory describes tools in its own words ("Action: …") instead of the model's."""
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
"""LLaMA-Factory's templates by model names on Hugging Face."""
_WHOLE = re.compile(r"(?<=^\d)e")
_AROUND = 64  # maximum number of bytes that a template puts around a turn

Tag = Literal["human", "gpt", "function_call", "observation"]
Stage = Literal["sft", "dpo", "rm", "kto"]
_STAGES: Mapping[str, tuple[Stage, ...]] = {SFT_FILE: ("sft",), DPO_FILE: ("dpo", "rm"), KTO_FILE: ("kto",)}
"""LLaMA-Factory's stages that train on a file."""
_FILES: Mapping[Stage, str] = {stage: name for name, stages in _STAGES.items() for stage in stages}
WITHOUT_GPU = "bf16=false use_cpu=true"
"""Arguments of `llamafactory-cli train` that replace settings of a YAML for a machine without a GPU."""


class ShareGPTMessage(Record):
    """One turn."""

    from_: Tag = Field(serialization_alias="from")
    value: str


class ShareGPTSFTRow(Record):
    """A row of `sft.jsonl`."""

    conversations: tuple[ShareGPTMessage, ...]
    system: str
    tools: str
    """JSON, or "" without tools."""


class ShareGPTDPORow(ShareGPTSFTRow):
    """A row of `dpo.jsonl`."""

    chosen: ShareGPTMessage
    rejected: ShareGPTMessage


class ShareGPTKTORow(ShareGPTSFTRow):
    """A row of `kto.jsonl`."""

    kto_tag: bool


@dataclass
class LlamaFactoryTarget:
    """Export target for one model and template.

    `split_parallel_calls` writes several calls of a turn one after the other, each with its result. `cutoff_len` is
    written to the YAML; 0 stands for the size of the longest conversation in bytes, an upper bound of its tokens.
    """

    model: str
    template: str
    split_parallel_calls: bool = False
    cutoff_len: int = 0
    num_split: int = field(default=0, init=False)
    """Number of turns that were split."""
    longest: int = field(default=0, init=False)

    def rows(self, example: TrainingExample) -> Iterator[tuple[str, Record]]:
        """Yield the rows of a conversation."""
        for name, row in self._rows(example):
            size = len(row.model_dump_json().encode()) + len(row.tools) + _AROUND * len(row.conversations)
            self.longest = max(self.longest, size)
            yield name, row

    def files(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """Return `dataset_info.json`, and YAMLs to train, merge and infer for each stage with a file.

        Pairs have two stages: `dpo`, and `rm`, a reward model.
        """
        info = {_dataset(name): _info(name) for name in (SFT_FILE, DPO_FILE, KTO_FILE) if name in counts}
        made = {"dataset_info.json": json.dumps(info, indent=2) + "\n"}
        cutoff = self.cutoff_len or -(-self.longest // 256) * 256
        for stage in (stage for name in counts for stage in _STAGES[name]):
            for how in ("lora", "full", "qlora") if stage == "sft" else ("lora",):
                made[f"{stage}_{how}.yaml"] = self._training(stage, how, cutoff)
            made[f"{stage}_merge.yaml"] = self._merging(stage)
            made[f"{stage}_infer.yaml"] = self._inference(stage)
        return made

    def notes(self) -> Sequence[str]:
        """Report the number of split turns, and a template that describes tools differently from the model's own."""
        split = f"split: {self.num_split:,} turns with several calls"
        words = f"template {self.template} describes tools in LLaMA-Factory's words, unlike the model's own template"
        return [*([split] if self.num_split else []), *([words] if self.template in GENERIC_TOOL_TEMPLATES else [])]

    def _rows(self, example: TrainingExample) -> Iterator[tuple[str, ShareGPTSFTRow]]:
        if isinstance(example, Demonstration):
            yield (
                SFT_FILE,
                ShareGPTSFTRow(**self._conversation_columns(*split_last_reply(example.messages), example.tools)),
            )
        elif isinstance(example, PreferencePair):
            before, chosen, rejected = split_first_difference(example)
            turns = {"chosen": _reply(chosen), "rejected": _reply(rejected)}
            yield DPO_FILE, ShareGPTDPORow(**self._prompt_columns(before, example.tools), **turns)
        else:
            for before, reply in iter_replies(example):
                yield (
                    KTO_FILE,
                    ShareGPTKTORow(**self._conversation_columns(before, reply, example.tools), kto_tag=example.label),
                )

    def _conversation_columns(
        self, before: Sequence[Message], reply: Message, tools: Sequence[ToolSpec]
    ) -> dict[str, Any]:
        """Return the columns of a conversation that ends with a reply."""
        columns = self._prompt_columns(before, tools)
        return columns | {"conversations": (*columns["conversations"], _reply(reply))}

    def _prompt_columns(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """Return the columns of the messages before a reply."""
        own = bool(messages) and messages[0].role == "system"
        if own and not messages[0].content:
            raise UnsupportedExample("an empty policy, which LLaMA-Factory would replace with the template's default")
        turns = tuple(self._turns(messages[own:]))
        expected = [("human", "observation"), ("gpt", "function_call")]
        if len(turns) % 2 != 1 or any(turn.from_ not in expected[i % 2] for i, turn in enumerate(turns)):
            raise UnsupportedExample("turns that do not alternate")
        system = messages[0].content if own else ""
        listed = json.dumps([tool_to_openai(tool) for tool in tools]) if tools else ""
        return {"conversations": turns, "system": system, "tools": listed}

    def _turns(self, messages: Sequence[Message]) -> Iterator[ShareGPTMessage]:
        at = 0
        while at < len(messages):
            message = messages[at]
            results = [m.content for m in messages[at + 1 : at + 1 + len(message.tool_calls)]]
            at += 1
            if message.role == "system":
                raise UnsupportedExample("a system message after the first message")
            if message.role == "user":
                yield ShareGPTMessage(from_="human", value=message.content)
            elif not message.tool_calls:
                yield _reply(message)
            else:
                at += len(results)
                yield from self._call_messages(message, results)

    def _call_messages(self, message: Message, results: Sequence[str]) -> Iterator[ShareGPTMessage]:
        """Return the turns of a reply with calls, and of their results."""
        if len(results) == 1 or self.template in MERGED_OBSERVATION_TEMPLATES:
            if len(results) > 1 and any(RESULT_SEPARATOR in result for result in results):
                raise UnsupportedExample("results that contain the separator of merged results")
            yield _reply(message)
            yield ShareGPTMessage(from_="observation", value=RESULT_SEPARATOR.join(results))
            return
        if not self.split_parallel_calls:
            how = "--split-parallel-calls splits them"
            raise UnsupportedExample(f"several calls in a turn, which template {self.template} cannot express ({how})")
        self.num_split += 1
        for place, (call, result) in enumerate(zip(message.tool_calls, results, strict=True)):
            yield _reply(message.replace(content="" if place else message.content, tool_calls=(call,)))
            yield ShareGPTMessage(from_="observation", value=result)

    def _training(self, stage: Stage, how: str, cutoff: int) -> str:
        values = {
            "model_name_or_path": self.model,
            "stage": stage,
            "do_train": True,
            "finetuning_type": "full" if how == "full" else "lora",
            **({} if how == "full" else {"lora_rank": 32, "lora_alpha": 64, "lora_target": "all"}),
            **({"quantization_bit": 4, "quantization_method": "bnb"} if how == "qlora" else {}),
            **({"pref_beta": 0.1} if stage in ("dpo", "kto") else {}),
            **({"pref_loss": "sigmoid"} if stage == "dpo" else {}),
            "dataset_dir": ".",
            "dataset": _dataset(_FILES[stage]),
            "template": self.template,
            "enable_thinking": False,
            "cutoff_len": cutoff,
            "output_dir": f"saves/{stage}_{how}",
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 8,
            "learning_rate": {"full": 1e-5}.get(how, 5e-6 if stage in ("dpo", "kto") else 1e-4),
            "num_train_epochs": 3.0,
            "lr_scheduler_type": "cosine",
            "bf16": True,
            "logging_steps": 10,
            "save_steps": 500,
            "report_to": "none",
        }
        command = f"llamafactory-cli train {stage}_{how}.yaml"
        return _yaml(values, command, *([] if how == "qlora" else [f"Without a GPU: {command} {WITHOUT_GPU}"]))

    def _merging(self, stage: Stage) -> str:
        values = {
            **self._trained(stage),
            "export_dir": f"saves/{stage}_merged",
            "export_device": "cpu",
        }
        return _yaml(values, f"llamafactory-cli export {stage}_merge.yaml")

    def _inference(self, stage: Stage) -> str:
        values = {**self._trained(stage), "enable_thinking": False, "infer_backend": "huggingface"}
        api = f"API_HOST=127.0.0.1 API_PORT=8000 llamafactory-cli api {stage}_infer.yaml"
        return _yaml(values, *([] if stage == "rm" else [f"llamafactory-cli chat {stage}_infer.yaml"]), api)

    def _trained(self, stage: Stage) -> dict[str, Any]:
        """Return the settings that open the model with the adapters of `STAGE_lora.yaml`.

        A reward model needs its stage. LLaMA-Factory generates text in its default stage `sft` only.
        """
        return {
            "model_name_or_path": self.model,
            "adapter_name_or_path": f"saves/{stage}_lora",
            **({"stage": stage} if stage == "rm" else {}),
            "template": self.template,
        }


def resolve_template(model: str, template: str = "") -> tuple[str, str]:
    """Return a model's name for the YAML, and its template: as given, by its chat template, or by its name.

    Only local models are read; nothing is downloaded.
    """
    if model in MODELS or Path(os.path.expanduser(model)).exists():
        folder = find_model(model)
        found = template or _by_text(read_chat_template(folder)) or _by_name(folder.resolve().name, model)
        return str(folder.resolve()), found
    return model, template or _by_name(model, model)


def _by_text(text: str) -> str:
    """Return the template for a known chat template, else ""."""
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


def _reply(message: Message) -> ShareGPTMessage:
    if not message.tool_calls:
        return ShareGPTMessage(from_="gpt", value=message.content)
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    text = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False).replace("<", "\\u003c")
    if not message.content:
        return ShareGPTMessage(from_="function_call", value=text)
    if TOOL_CALL_START in message.content:
        raise UnsupportedExample(f"replies with calls whose text contains {TOOL_CALL_START}")
    return ShareGPTMessage(from_="function_call", value=f"{message.content}\n{TOOL_CALL_START}{text}{TOOL_CALL_END}")


def _dataset(name: str) -> str:
    return f"understudy_{name.removesuffix('.jsonl')}"


def _info(name: str) -> dict[str, Any]:
    """Return the entry of `dataset_info.json` for a file."""
    columns = {"messages": "conversations", "system": "system", "tools": "tools"}
    columns |= {"chosen": "chosen", "rejected": "rejected"} if name == DPO_FILE else {}
    columns |= {"kto_tag": "kto_tag"} if name == KTO_FILE else {}
    ranking = {"ranking": True} if name == DPO_FILE else {}
    return {"file_name": name, "formatting": "sharegpt", **ranking, "columns": columns}


def _yaml(values: Mapping[str, Any], *commands: str) -> str:
    """Write a flat YAML, below the commands that read it.

    JSON scalars are valid YAML, except numbers such as 1e-05, which YAML 1.1 reads as text.
    """
    lines = (f"{key}: {_WHOLE.sub('.0e', json.dumps(value))}" for key, value in values.items())
    return "\n".join(["# In this folder:", *(f"#   {command}" for command in commands), *lines]) + "\n"
