"""Serve the model of a run or a config until Ctrl-C."""

import contextlib
from collections.abc import Callable

from understudy.clients.chat import require_api_key
from understudy.engines.local.machine import detect_machine
from understudy.engines.models import find_model
from understudy.formats import FormatTokenizer
from understudy.runs.agents import open_model
from understudy.runs.weights import ModelWeights
from understudy.serve.generation import ServedModel
from understudy.serve.options import ServeConfig
from understudy.serve.request_log import RequestLog
from understudy.serve.server import make_serve_app, open_socket, run_server


def serve_model(weights: ModelWeights, config: ServeConfig, on_message: Callable[[str], None]) -> None:
    """Serve a model until Ctrl-C. `on_message` receives warnings and the address."""
    key, listener = require_api_key(config.api_key_var), open_socket(config)
    with listener:
        if config.log:
            RequestLog(config.log)  # a file that cannot be written is refused before the model is loaded
        model = load_served_model(weights, config)
        slow = detect_machine(weights.config.engine.export_engine_config).warnings
        for line in (*weights.warnings, *slow, model.sampler_note):
            on_message(line)
        if not (config.is_loopback or key):
            on_message(f"anyone who can reach {config.host} can use this server; set a key with --api-key-var")
        host = f"[{config.host}]" if ":" in config.host else config.host
        address = f"http://{host}:{listener.getsockname()[1]}/v1"
        ready = f"{weights.name} is served at {address}; press Ctrl-C to stop"
        with contextlib.closing(model.sampler):
            run_server(make_serve_app(model, config, key), listener, lambda: on_message(ready))


def load_served_model(weights: ModelWeights, config: ServeConfig) -> ServedModel:
    """Load the model, with a sampler that generates up to `config.concurrency` replies at once.

    A conversation may be as long as the model's context; vLLM is started with the full context length.
    """
    engine = weights.config.engine.replace(max_num_seqs=config.concurrency)
    sampler, format = open_model(weights.config, weights.checkpoint, engine)
    file = find_model(weights.config.model) / "tokenizer.json"
    return ServedModel(weights.name, sampler, format, FormatTokenizer.load(file), str(sampler.sampler_choice), file)
