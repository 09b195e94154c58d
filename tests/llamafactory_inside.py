"""Runs inside LLaMA-Factory's environment: what it, and TRL beside it, make of the files of a folder, as JSON.

python llamafactory_inside.py FOLDER OF_TRL MODEL
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset  # type: ignore[import-not-found]
from llamafactory.data import get_dataset, get_template_and_fix_tokenizer  # type: ignore[import-not-found]
from llamafactory.data.template import TEMPLATES  # type: ignore[import-not-found]
from llamafactory.extras.constants import DEFAULT_TEMPLATE  # type: ignore[import-not-found]
from llamafactory.hparams import get_train_args  # type: ignore[import-not-found]
from llamafactory.model import load_tokenizer  # type: ignore[import-not-found]
from transformers import AutoTokenizer
from trl import apply_chat_template, is_conversational  # type: ignore[import-not-found]


def tokenized(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows that the YAML `name` trains on."""
    lines = (line.partition(": ") for line in (folder / name).read_text().splitlines() if line[0] != "#")
    values = {key: json.loads(text) for key, _, text in lines}
    values |= {"bf16": False, "use_cpu": True, "dataset_dir": str(folder), "output_dir": str(folder / "none")}
    model, data, training, _, _ = get_train_args(values)
    module = load_tokenizer(model)
    template = get_template_and_fix_tokenizer(module["tokenizer"], data)
    found = get_dataset(template, model, data, training, stage=values["stage"].replace("dpo", "rm"), **module)
    return list(found["train_dataset"])


def rendered(folder: Path, model: str) -> Iterator[str]:
    """TRL's rows for SFT as its chat template writes them."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [json.loads(line) for line in (folder / "sft.jsonl").read_text().splitlines()]
    for row in rows:
        assert is_conversational(row)
        assert is_conversational({key: row[key] for key in ("messages",)})
        yield apply_chat_template({"messages": row["messages"]}, tokenizer, tools=json.loads(row["tools"]))["text"]
    assert len(Dataset.from_list([{"tools": row["tools"]} for row in rows])) == len(rows)


def joining(name: str) -> bool:
    """Whether a template's observation is one text between marks."""
    slots = "".join(slot for slot in TEMPLATES[name].format_observation.slots if isinstance(slot, str))
    return "<tool_response>\n{{content}}\n</tool_response>" in slots


def main(folder: Path, of_trl: Path, model: str) -> None:
    """Print all of it."""
    found = {
        "sft": tokenized(folder, "sft_lora.yaml"),
        "dpo": tokenized(folder, "dpo_lora.yaml"),
        "kto": tokenized(folder, "kto_lora.yaml"),
        "trl": list(rendered(of_trl, model)),
        "joining": [name for name in TEMPLATES if joining(name)],
        "own_words": [
            n for n, t in TEMPLATES.items() if "Default" in type(getattr(t.format_function, "tool_utils", 0)).__name__
        ],
        "templates": dict(DEFAULT_TEMPLATE),
    }
    print(f"\n{json.dumps(found)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
