"""Resources servers of NeMo Gym for the tests, run with a Python that has nemo-gym.

python nemo_gym_servers.py NAME...      serves these, and prints their ports and the files of their rows as JSON
"""

import asyncio
import importlib
import inspect
import json
import socket
import sys
from pathlib import Path
from unittest.mock import MagicMock

import uvicorn
from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.server_utils import ServerClient


def open_app(name):
    """Return the application of a server, as its own tests make it, and the file of its rows."""
    module = importlib.import_module(f"resources_servers.{name}.app")
    classes = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    (server_class,) = (each for each in classes if issubclass(each, SimpleResourcesServer))
    config = server_class.model_fields["config"].annotation(host="127.0.0.1", port=0, entrypoint="", name=name)
    server = server_class(config=config, server_client=MagicMock(spec=ServerClient))
    return server.setup_webserver(), str(Path(module.__file__).with_name("data") / "example.jsonl")


async def main():
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in sys.argv[1:]}
    apps = {name: open_app(name) for name in sockets}
    servers = [uvicorn.Server(uvicorn.Config(app, log_level="error")) for app, _ in apps.values()]
    print(json.dumps({name: [sockets[name].getsockname()[1], apps[name][1]] for name in apps}), flush=True)
    await asyncio.gather(*(each.serve([sockets[name]]) for name, each in zip(apps, servers, strict=True)))


if __name__ == "__main__":
    asyncio.run(main())
