"""Imported by the process that runs are forked from: what transformers builds once in a process and every run needs."""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("llama")  # compiles about 900 regular expressions for all model types
