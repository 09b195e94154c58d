"""SkyRL's Tinker server on this machine, for the engine `tinker`: on loopback, without uv, its files in one folder.

    python -m understudy.integrations.tinker_server --base-model FOLDER [--port 8000] [--folder tinker-server]

Further options are SkyRL's own (`--help`). To be run by the Python that SkyRL is installed in; this file imports
nothing else of the package, so that its path may be run as well. SkyRL 0.3.0 and 0.4.0 start the process that computes
by `uv run` in a checkout, listen on every address, and write beside their own code; here that process is this file.
"""

import argparse
import os
import runpy
import sys
import threading
import time
import typing
from pathlib import Path

import typing_extensions

ENGINE = "--understudy-engine"


def main() -> None:
    """The server, or the process of it that computes."""
    if sys.version_info < (3, 12):  # pydantic refuses the TypedDict of skyrl.tinker.types there
        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc, assignment]
    if sys.argv[1:2] == [ENGINE]:
        del sys.argv[1]
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
        runpy.run_module("skyrl.tinker.engine", run_name="__main__", alter_sys=True)
    else:
        _serve()


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
        *(sys.executable, str(Path(__file__).absolute()), ENGINE),
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
    parser.add_argument("--host", default="127.0.0.1", help="Whoever can reach it can train: it asks for no key")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--folder", type=Path, default=Path("tinker-server"), help="For its database and checkpoints")
    return parser


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, even where that was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
