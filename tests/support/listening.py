"""An ASGI application on a real server, on a free loopback port, in its own thread."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from understudy.serve.options import ServeConfig
from understudy.serve.server import make_server, open_socket


@contextmanager
def serve_app(make: Callable[[ServeConfig], Any], **options: Any) -> Iterator[str]:
    """Yield the address of the application that `make` creates for a config."""
    config = ServeConfig(port=0, **options)
    with open_socket(config) as listener:
        running = make_server(make(config))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline = time.monotonic() + 60
            while not running.started and time.monotonic() < deadline:
                time.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            running.should_exit = True
            thread.join()
