"""Read a log with inspect_ai and print its content. Runs in an environment with inspect_ai, with the log's path."""

import json
import sys
import warnings

from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries

warnings.simplefilter("error")
path = sys.argv[1]
log = read_eval_log(path)
samples = log.samples or []
print(
    json.dumps(
        {
            "status": log.status,
            "task": log.eval.task,
            "model": log.eval.model,
            "epochs": log.eval.config.epochs,
            "accuracy": log.results.scores[0].metrics["accuracy"].value if log.results else None,
            "summaries": len(read_eval_log_sample_summaries(path)),
            "samples": [
                {
                    "id": sample.id,
                    "epoch": sample.epoch,
                    "limit": sample.limit.type if sample.limit else None,
                    "success": (sample.scores or {})["success"].as_float(),
                    "why": (sample.scores or {})["reward"].explanation,
                    "texts": [message.text for message in sample.messages],
                    "roles": [message.role for message in sample.messages],
                    "calls": [
                        [call.function, call.arguments, call.parse_error]
                        for message in sample.messages
                        if message.role == "assistant"
                        for call in message.tool_calls or ()
                    ],
                    "errors": [
                        message.error.message for message in sample.messages if message.role == "tool" and message.error
                    ],
                }
                for sample in samples
            ],
        }
    )
)
