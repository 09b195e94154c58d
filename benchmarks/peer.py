"""Other trainers, each in its own virtual environment, for benchmarks that compare with them."""

import subprocess
import sys
from pathlib import Path

TRL = "trl==1.16.0"
UNSLOTH = "unsloth==2026.10.9"
VLLM = "vllm<=0.31.0"  # the newest that TRL 1.16 accepts
TORCH = "torch==2.13.0"
BESIDE = ("transformers==5.23.0", "accelerate==1.15.0", "datasets==5.2.0", "peft==0.21.2")  # requirements of TRL
PYDANTIC = "pydantic>=2.12"  # for this package's tools and rewards in TRL's process
PEERS = {
    "trl": (TORCH, TRL, *BESIDE, PYDANTIC),
    "trl-vllm": (TRL.replace("==", "[vllm]=="), VLLM, "peft"),  # vLLM pins torch and transformers
    "unsloth": (UNSLOTH, VLLM),  # it pins an older TRL
}
"""Packages of each environment. `trl` samples with transformers, the others with vLLM in the same process."""
NAMES = {"trl": TRL, "trl-vllm": f"{TRL} with vLLM", "unsloth": f"{UNSLOTH} with vLLM"}


def python_of(peer: str) -> Path:
    """Return the Python of a peer's virtual environment. The first call creates it (1.5 GB; 10 GB with vLLM)."""
    # The peer's Python also imports this module, and there the package's requirements are missing.
    from understudy.engines.models import cache_folder

    folder, wanted = cache_folder() / "benchmarks" / NAMES[peer].replace(" ", "-"), PEERS[peer]
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists() or ready.read_text().split("\n") != [*wanted]:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
        ready.write_text("\n".join(wanted))
    return python


if __name__ == "__main__":
    print(f'{{"python": "{python_of(sys.argv[1])}"}}')
