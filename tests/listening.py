"""An application on a real server, on a free port of loopback, in a thread of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from understudy.serve.options import ServeConfig
from understudy.serve.server import listen, server


@contextmanager
def listening(make: Callable[[ServeConfig], Any], **options: Any) -> Iterator[str]:
    """The address of what is made for a config."""
    config = ServeConfig(port=0, **options)
    with listen(config) as listener:
        running = server(make(config))
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
