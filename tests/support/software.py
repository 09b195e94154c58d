"""Software that single suites need, installed in the user's cache.

    PYTHONPATH=tests python -m support.software             installs everything that is missing
    PYTHONPATH=tests python -m support.software vllm skyrl   installs what two suites need

A suite installs what it needs itself. This program only does it earlier: `.ci/run` runs it beside the first suites.
"""

import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.machine import find_program
from support.venvs import Pip, install_packages, make_cached_folder, make_venv, run_command

BFCL = ("bfcl-eval==2026.3.23", "mpmath==1.3.0")
INSPECT = "inspect-ai==0.3.285"
GYMNASIUM = ("gymnasium==1.4.0", "cloudpickle==3.1.3", "farama-notifications==0.0.6")
HARBOR = ("--ignore-requires-python", "harbor==0.26.0", "toml==0.10.2")
"""Harbor's records need no newer Python, as its programs do."""
NEMO_GYM = ("--no-deps", "--ignore-requires-python", "nemo-gym==0.7.0", "ray==2.60.0")
"""NeMo Gym's servers need no newer Python, and of Ray only the name of its version."""
NEMO_GYM_NEEDS = (
    *("openai==2.44.0", "fastapi", "uvicorn", "httptools", "itsdangerous", "aiohttp", "requests", "orjson", "anyio"),
    *("hydra-core", "omegaconf", "rich", "tqdm", "devtools", "psutil", "jinja2", "mcp>=1.28.1,<2"),
    *("pandas", "scipy", "wandb", "yappi", "gprof2dot", "pydot"),
)
OPENENV = "openenv==0.10.0"
VERIFIERS = "verifiers==0.4.0"
WEBSOCKETS = "websockets==15.0.1"
TRL = (
    "trl==1.16.0",
    "accelerate==1.15.0",
    "aiohappyeyeballs==2.7.1",
    "aiohttp==3.14.5",
    "aiosignal==1.4.0",
    "attrs==26.1.0",
    "charset-normalizer==3.5.3",
    "datasets==5.2.0",
    "dill==0.4.1",
    "frozenlist==1.8.0",
    "httpcore==1.0.9",
    "httpx==0.28.1",
    "multidict==7.2.1",
    "multiprocess==0.70.19",
    "pandas==3.1.1",
    "propcache==0.5.4",
    "psutil==7.2.2",
    "python-dateutil==4.0.0",
    "pytz==2026.6",
    "requests==2.34.2",
    "six==1.17.0",
    "tzdata==2026.6",
    "urllib3==2.8.0",
    "xxhash==4.1.0",
    "yarl==1.25.1",
)
"""TRL, and its requirements that `make install` does not install."""
BITSANDBYTES = "bitsandbytes==0.50.2"
HARMONY = "openai-harmony==0.0.8"
AGENT_FRAMEWORKS = (
    "openai==3.57.0",
    "langchain==1.5.2",
    "langchain-openai==1.7.4",
    "langgraph==1.2.24",
    "openai-agents==0.24.0",
    "pydantic-ai-slim[mcp,openai]==2.68.0",
    "smolagents[openai]==1.26.0",
    "autogen-agentchat==0.7.5",
    "autogen-ext[openai]==0.7.5",
)
MKDOCS = "mkdocs-material==9.8.1"
NPM = tuple(f"@modelcontextprotocol/server-{name}@2026.8.31" for name in ("everything", "filesystem", "memory"))
PYPI = {
    "time": ("mcp-server-time==2026.10.19",),
    "git": ("mcp-server-git==2026.10.19",),
    "sqlite": ("mcp-server-sqlite==2025.4.25", "mcp<2"),
}


def inspect_programs() -> Path:
    """Return the folder of programs of an environment with inspect_ai."""
    return make_venv(f"inspect-{INSPECT.partition('==')[2]}", INSPECT) / "bin"


def agent_frameworks_python() -> str:
    """Return the Python of an environment with the frameworks of agent programs."""
    return str(make_venv("agent-frameworks-1", *AGENT_FRAMEWORKS) / "bin" / "python")


def nemo_gym_python() -> str:
    """Return the Python of an environment with NeMo Gym's resources servers."""

    def fill(python: Path, pip: Pip) -> None:
        pip(*NEMO_GYM)
        pip(*NEMO_GYM_NEEDS)

    return str(make_venv("nemo-gym-1", *NEMO_GYM, *NEMO_GYM_NEEDS, fill=fill) / "bin" / "python")


def openenv_python() -> str:
    """Return the Python of an environment with OpenEnv."""
    return str(make_venv("openenv-1", OPENENV) / "bin" / "python")


def verifiers_python() -> str:
    """Return the Python of an environment with verifiers."""
    return str(make_venv("verifiers-1", VERIFIERS) / "bin" / "python")


def bfcl_packages() -> Path:
    """Return a folder with BFCL, and what the classes of its multi-turn tasks need."""
    return install_packages("bfcl", *BFCL)


def gymnasium_packages() -> Path:
    """Return a folder with Gymnasium."""
    return install_packages("gymnasium", *GYMNASIUM)


def harbor_packages() -> Path:
    """Return a folder with Harbor."""
    return install_packages("harbor", *HARBOR)


def trl_packages() -> Path:
    """Return a folder with TRL, for this Python's PyTorch and Transformers."""
    return install_packages("trl", *TRL)


def websockets_packages() -> Path:
    """Return a folder with websockets."""
    return install_packages("websockets", WEBSOCKETS)


def bitsandbytes_packages() -> Path:
    """Return a folder with bitsandbytes. Its wheel holds kernels for every GPU."""
    return install_packages(BITSANDBYTES, BITSANDBYTES)


def harmony_packages() -> Path:
    """Return a folder with OpenAI's library for the format Harmony."""
    return install_packages("openai-harmony", HARMONY)


def mkdocs_python() -> str:
    """Return the Python of an environment with MkDocs."""
    return str(make_venv("docs-1", MKDOCS) / "bin" / "python")


def npm_program(name: str) -> str:
    """Install the MCP servers from npm and return the program of one."""
    for needed in ("node", "npm"):
        find_program(needed, package="nodejs npm")
    install = ("npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix")
    folder = make_cached_folder("mcp-servers/npm", lambda folder: run_command(*install, str(folder), *NPM), *NPM)
    return str(folder / "node_modules" / ".bin" / f"mcp-server-{name}")


def pypi_program(name: str) -> str:
    """Install an MCP server from PyPI in its own environment and return its program."""
    return str(make_venv(f"mcp-servers/{name}", *PYPI[name]) / "bin" / f"mcp-server-{name}")


def _mcp_servers() -> None:
    npm_program("memory")
    for name in PYPI:
        pypi_program(name)


def installers() -> dict[str, tuple[Callable[[], object], ...]]:
    """Return the functions that install what each suite needs, in the order in which `.ci/run` needs it."""
    from support import browser, families, llamafactory_cli, skyrl_server, skyrl_venv, trackers_venv, vllm_server

    return {
        "programs": (agent_frameworks_python,),
        "trackers": (trackers_venv.install,),
        "inspect": (inspect_programs,),
        "environments": (
            openenv_python,
            nemo_gym_python,
            verifiers_python,
            trl_packages,
            gymnasium_packages,
            bfcl_packages,
            harbor_packages,
            websockets_packages,
        ),
        "qlora": (bitsandbytes_packages,),
        "families": (families.install, harmony_packages),
        "mcp": (_mcp_servers,),
        "browser": (browser.chromium_path, browser.playwright_packages, mkdocs_python),
        "llamafactory": (llamafactory_cli.install,),
        "vllm": (vllm_server.install,),
        "skyrl": (skyrl_venv.install, skyrl_server.client_packages),
    }


def install_for(suite: str, functions: Iterable[Callable[[], object]]) -> bool:
    """Install what a suite needs, and print how long it took or why it failed. Return whether it succeeded."""
    started = time.monotonic()
    try:
        for install in functions:
            install()
    except RuntimeError as error:
        print(f"{suite}: {error}", flush=True)
        return False
    print(f"{suite}: {time.monotonic() - started:.0f} s", flush=True)
    return True


def main(suites: list[str]) -> int:
    """Install what the suites need, by default all, for two suites at a time. A failure stops no other."""
    chosen = {suite: install for suite, install in installers().items() if not suites or suite in suites}
    with ThreadPoolExecutor(2) as pool:
        return int(not all(list(pool.map(install_for, chosen, chosen.values()))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
