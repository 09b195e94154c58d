"""Runs in LLaMA-Factory's environment: prints as JSON what LLaMA-Factory and TRL read from a folder's files.

python llamafactory_inside.py FOLDER OF_TRL MODEL
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llamafactory.data import get_dataset, get_template_and_fix_tokenizer  # type: ignore[import-not-found]
from llamafactory.data.template import TEMPLATES  # type: ignore[import-not-found]
from llamafactory.extras.constants import DEFAULT_TEMPLATE  # type: ignore[import-not-found]
from llamafactory.hparams import get_train_args  # type: ignore[import-not-found]
from llamafactory.model import load_tokenizer  # type: ignore[import-not-found]
from omegaconf import OmegaConf  # type: ignore[import-not-found]
from transformers import AutoTokenizer
from trl import apply_chat_template, is_conversational  # type: ignore[import-not-found]


def read_arguments(folder: Path, name: str) -> tuple[Any, ...]:
    """Return the arguments of the YAML `name`, as LLaMA-Factory reads and checks them."""
    values = OmegaConf.to_container(OmegaConf.load(folder / name))
    values |= {"bf16": False, "use_cpu": True, "dataset_dir": str(folder), "output_dir": str(folder / "none")}
    return (values["stage"], *get_train_args(values))


def tokenized_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the training rows of the YAML `name`."""
    stage, model, data, training, _, _ = read_arguments(folder, name)
    module = load_tokenizer(model)
    template = get_template_and_fix_tokenizer(module["tokenizer"], data)
    found = get_dataset(template, model, data, training, stage=stage.replace("dpo", "rm"), **module)
    return list(found["train_dataset"])


def trl_texts(folder: Path, name: str, model: str) -> Iterator[list[str]]:
    """Return TRL's rows as texts: the conversation for SFT, and for the others the prompt with each ending.

    They are rendered as in DPOTrainer and KTOTrainer of TRL 1.10. The installed version 0.24 rejects a prompt that
    ends with a tool result.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    for line in (folder / name).read_text().splitlines():
        row = json.loads(line)
        tools = json.loads(row.pop("tools"))
        assert is_conversational(row)
        if "messages" in row:
            yield [apply_chat_template(row, tokenizer, tools=tools)["text"]]
            continue
        shown = tokenizer.apply_chat_template(row["prompt"], tools, add_generation_prompt=True, tokenize=False)
        ends = [row["prompt"] + row[key] for key in ("chosen", "rejected", "completion") if key in row]
        texts = [tokenizer.apply_chat_template(end, tools, tokenize=False) for end in ends]
        assert all(text.startswith(shown) for text in texts)
        yield texts


def joins_observations(name: str) -> bool:
    """Return whether a template writes an observation as one text between marks."""
    slots = "".join(slot for slot in TEMPLATES[name].format_observation.slots if isinstance(slot, str))
    return "<tool_response>\n{{content}}\n</tool_response>" in slots


def main(folder: Path, of_trl: Path, model: str) -> None:
    """Print the results."""
    found = {
        "sft": tokenized_rows(folder, "sft_lora.yaml"),
        "dpo": tokenized_rows(folder, "dpo_lora.yaml"),
        "kto": tokenized_rows(folder, "kto_lora.yaml"),
        "trl": {name: list(trl_texts(of_trl, f"{name}.jsonl", model)) for name in ("sft", "dpo", "kto")},
        "finetuning_types": [
            read_arguments(folder, f"sft_{how}.yaml")[4].finetuning_type for how in ("lora", "full", "qlora")
        ],
        "joins_observations": [name for name in TEMPLATES if joins_observations(name)],
        "default_tool_formats": [
            n for n, t in TEMPLATES.items() if "Default" in type(getattr(t.format_function, "tool_utils", 0)).__name__
        ],
        "templates": dict(DEFAULT_TEMPLATE),
    }
    print(f"\n{json.dumps(found)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
