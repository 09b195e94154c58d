"""Starts SkyRL's Tinker server on this machine, for the engine `tinker`. It needs no uv and stores files in one folder.

    python -m understudy.engines.tinker.skyrl_server --base-model FOLDER [--port 8000] [--folder tinker-server]

Other options are SkyRL's (`--help`). Run it with the Python that SkyRL is installed in. This file imports nothing else
of understudy, so it can also be run by its path. SkyRL 0.3.0 and 0.4.0 would start the training process with `uv run`
in a checkout, listen on every address, and write files beside their code. Here this file is also the training process.
"""

import argparse
import inspect
import os
import sys
import threading
import time
import typing
from pathlib import Path
from typing import Any

import typing_extensions

ENGINE = "--understudy-engine"


def main() -> None:
    """Run the server, or its training process."""
    _look_past_own_folder()
    _mend_types()
    if sys.argv[1:2] == [ENGINE]:
        del sys.argv[1]
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        _compute()
    else:
        _serve()


def _look_past_own_folder() -> None:
    """Remove this folder from sys.path, so that its `client` and `config` do not shadow other modules."""
    folder = Path(__file__).absolute().parent
    sys.path[:] = [path for path in sys.path if Path(path).absolute() != folder]


def _mend_types() -> None:
    """Replace typing.TypedDict before Python 3.12, where pydantic rejects the one in skyrl.tinker.types."""
    if sys.version_info < (3, 12):
        typing.TypedDict = typing_extensions.TypedDict


def _serve() -> None:
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    options = vars(_parser().parse_args())
    folder = options["folder"].absolute()
    folder.mkdir(parents=True, exist_ok=True)
    options["database_url"] = options["database_url"] or f"sqlite:///{folder / 'tinker.db'}"
    options["checkpoints_base"] = options["checkpoints_base"] or folder / "checkpoints"
    api._build_uv_run_cmd_engine = lambda _, config: [
        sys.executable,
        str(Path(__file__).absolute()),
        ENGINE,
        *config_to_argv(config),
    ]
    api.app.state.engine_config = EngineConfig.model_validate(
        {name: value for name, value in options.items() if name in EngineConfig.model_fields}
    )
    uvicorn.run(api.app, host=options["host"], port=options["port"], log_level="warning")


def _parser() -> argparse.ArgumentParser:
    from skyrl.tinker.config import EngineConfig, add_model

    parser = argparse.ArgumentParser(description="SkyRL's Tinker server on this machine")
    add_model(parser, EngineConfig)
    parser.set_defaults(backend="jax", database_url="", checkpoints_base=None)
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on. The server requires no key.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--folder", type=Path, default=Path("tinker-server"), help="Folder of the database and the checkpoints."
    )
    return parser


def _compute() -> None:
    from skyrl.tinker import engine
    from skyrl.tinker.config import EngineConfig, add_model

    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    config = EngineConfig.model_validate(vars(parser.parse_args()))
    if config.backend_config.get("use_ray"):
        _join_ray()
    engine.TinkerEngine(config).run()


def _join_ray() -> None:
    """Connect to the Ray cluster in RAY_ADDRESS, or start one. Its workers get the patched types and JAX's settings."""
    import ray
    from skyrl.backends.ray_jax import RayJaxBackend

    settings = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "HF_"))}
    address = None if "RAY_ADDRESS" in os.environ else "local"  # "local": None would join a cluster that Ray remembers
    ray.init(address, runtime_env={"env_vars": settings, "worker_process_setup_hook": _mend_types})
    created = RayJaxBackend.create_model
    if "model_role" not in inspect.signature(created).parameters:  # SkyRL 0.3.0 passes it although it is missing

        def create_model(self: Any, model_id: str, lora_config: Any, model_role: str = "policy") -> None:
            if model_role != "policy":
                raise ValueError(f"model_role={model_role!r} is not supported; this backend trains policies only")
            created(self, model_id, lora_config)

        RayJaxBackend.create_model = create_model


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, even if the parent was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
