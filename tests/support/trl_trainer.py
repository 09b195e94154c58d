"""One step of TRL's GRPOTrainer with given replies, run with TRL on the import path.

    python trl_trainer.py MODEL < jobs.json

A job names a class `module:attribute` for `environment_factory` with a row, or a source of understudy with the index of
a task, and the replies of a completion. For each job, the mean reward of the step is printed as a JSON line.
"""

import json
import sys
import tempfile
from pathlib import Path

import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from understudy.core.imports import import_object
from understudy.rollouts.trl_environment import TRLEnvironment
from understudy.sources.loading import load_source

TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
SEQUENCE = "<|im_end|>"


class ScriptedTrainer(trl.GRPOTrainer):
    """Takes replies from a list in place of sampling them."""

    replies = ()

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        text, self.replies = self.replies[0], self.replies[1:]
        ids = self.processing_class(text + SEQUENCE, add_special_tokens=False).input_ids
        return [list(ids) for _ in prompt_ids], None


def train(model, job):
    """Return the mean reward of a step."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template, tokenizer.eos_token = TEMPLATE.read_text(), SEQUENCE
    tokenizer.pad_token = tokenizer.pad_token or SEQUENCE
    if "source" in job:
        ours = TRLEnvironment(load_source(job["source"]))
        given = {"environment_factory": ours.factory, "reward_funcs": ours.reward}
        row = ours.rows[job["task"]]
    else:
        given, row = {"environment_factory": import_object(job["class"])}, job["row"]
    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=2,
            num_generations=2,
            max_steps=1,
            max_completion_length=20_000,
            logging_steps=1,
            report_to="none",
            gradient_checkpointing=False,
        )
        trainer = ScriptedTrainer(
            model=AutoModelForCausalLM.from_pretrained(model),
            args=config,
            train_dataset=Dataset.from_list([row]),
            processing_class=tokenizer,
            **given,
        )
        trainer.replies = job["replies"]
        trainer.train()
    return next(entry["reward"] for entry in trainer.state.log_history if "reward" in entry)


if __name__ == "__main__":
    jobs, out = json.load(sys.stdin), sys.stdout
    sys.stdout = sys.stderr
    for job in jobs:
        print(json.dumps(train(sys.argv[1], job)), file=out, flush=True)
