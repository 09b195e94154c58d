"""Where a step's time goes on 1, 8, 64 and 512 GPUs: arithmetic over published rates and what `load.py` measures.

    python benchmarks/scaling.py [--each 64] [--longer 1] [--seconds 1.0] [--processes 1] [--share] [--check] [--json]

Nothing is run. Every constant says where it is from; everything else follows from the formulas below, which are those
of docs/scaling.md. It is a synchronous step of GRPO on one policy of 8 billion parameters whose GPUs generate first and
learn then. `--longer 10` lets replies be ten times as long as gold ones, as those of a model that thinks; `--share`
computes the prompt of a group once, where SkyRL computes it in every episode.
"""

import argparse
import json
import random
import statistics
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

# ---- of this package: measured ----
PROMPT, SAMPLED, OBSERVED = 2675, 175, 336
"""Tokens of a gold episode, mean of the 500 test tasks of the five domains, as SkyRL's generator makes them with
Qwen2.5's tokenizer (tests/test_skyrl_gym.py): its prompt with policy and tools, replies, and all that is answered."""
TEXTS = 3.3
"""Of its 7.4 replies, those that a user hears."""
ENVIRONMENT = 1 / 321
"""CPU seconds of an episode with scripted users (`load.py`), on cores that other programs wanted too."""
REQUEST = 0.0025
"""CPU seconds that a request to a user's endpoint takes of the process that plays (`load.py --user http`), alike."""
SIGMA = 0.5
"""Of the logarithm of a user's answering time, as in `load.py`; the median is `--seconds`."""

# ---- of others: published ----
PARAMETERS, KV_BYTES = 8.03e9, 2 * 2 * 32 * 8 * 128
"""Llama-3.1-8B, by its config.json: keys and values of 32 layers, 8 heads, 128 dimensions, 2 bytes each."""
BANDWIDTH = 3.35e12 * 0.77
"""Bytes a second that decoding reads: an H100 SXM's (NVIDIA's data sheet), times the share that vLLM was measured to
reach with an 8B on an A100 (johnmusgrave.com/p/vllm-throughput-latency-sweep-on)."""
TRAINED = {1: 5762.0, 8: 5762.0, 64: 5605.0, 512: 5605.0}
"""Tokens a second and GPU, forward and backward, bfloat16, FSDP: on 8 and on 128 H100 (pytorch/torchtitan,
benchmarks/llama3_h100_202412_torchtitan.md). One GPU is taken for one of 8, and 512 for 128."""
FORWARD = 3.0
"""How many times as fast a forward pass alone is: 2 of 6 floating point operations a parameter and token."""
PASSES = 2
"""Forward passes before the update: the policy's, and the reference's of a KL penalty, which is SkyRL's default."""
SENT = 134e9 / 14.955
"""Bytes a second of SkyRL's broadcast of new weights: 67 billion parameters from 32 H100 to 8, in a fork of SkyRL
(github.com/marin-community/marin/issues/8955)."""
GROUP = 8
"""Episodes of a task."""


PARTS = ("decode", "prefill", "users", "playing", "rollout", "forward", "update", "sync", "total")


@dataclass(frozen=True)
class Step:
    """Seconds of the parts of a step, and of the process that plays."""

    gpus: int
    episodes: int
    decode: float
    prefill: float
    users: float
    """Waiting, of the slowest episode."""
    playing: float
    """CPU time of environments and of requests to users, in each of the processes that play."""
    forward: float
    update: float
    sync: float

    @property
    def rollout(self) -> float:
        """Episodes wait for tokens and users in turn; who plays them works meanwhile, or is what all wait for."""
        return max(self.decode + self.prefill + self.users, self.playing)

    @property
    def total(self) -> float:
        """The whole step."""
        return self.rollout + self.forward + self.update + self.sync


def step(gpus: int, each: int, longer: float, seconds: float, processes: int, share: bool) -> Step:
    """The step of so many GPUs with `each` episodes a GPU."""
    episodes, sampled = gpus * each, SAMPLED * longer
    context = PROMPT + (sampled + OBSERVED) / 2  # on average, over an episode
    token = (2 * PARAMETERS + each * context * KV_BYTES) / BANDWIDTH
    trained = TRAINED[min(TRAINED, key=lambda known: abs(known - gpus))]
    learned = each * (PROMPT / (GROUP if share else 1) + sampled + OBSERVED)
    requests = TEXTS if seconds else 0.0
    return Step(
        gpus=gpus,
        episodes=episodes,
        decode=sampled * token,
        prefill=(PROMPT * each / GROUP + each * OBSERVED) / (trained * FORWARD),
        users=slowest(episodes, seconds),
        playing=episodes * (ENVIRONMENT + requests * REQUEST) / processes,
        forward=PASSES * learned / (trained * FORWARD),
        update=learned / trained,
        sync=2 * PARAMETERS / SENT,
    )


def slowest(episodes: int, seconds: float) -> float:
    """How long the slowest of the episodes waits for its users: the median of 9 draws."""
    if not seconds:
        return 0.0
    chance = random.Random(0)
    draws = [max(waited(chance) for _ in range(episodes)) for _ in range(9 if episodes < 10_000 else 3)]
    return seconds * statistics.median(draws)


def waited(chance: random.Random) -> float:
    return sum(chance.lognormvariate(0.0, SIGMA) for _ in range(round(TEXTS)))


def check() -> None:
    """The formulas beside a step that was published: NeMo RL v0.4, Llama-3.1-8B on 16 H100, on policy.

    2,048 sequences of 1,060 tokens on average and 4,096 at most took 97.7 s; github.com/NVIDIA-NeMo/RL,
    docs/about/performance-summary.md. Prompts are counted as replies, and batches as full to the end of the longest.
    """
    each, mean, longest = 2048 / 16, 1060, 4096
    token = (2 * PARAMETERS + each * mean / 2 * KV_BYTES) / BANDWIDTH
    learned = each * mean / TRAINED[8]
    made = {"decode, if all were average": mean * token, "decode of the longest": longest * token}
    made |= {"forward": PASSES * learned / FORWARD, "update": learned, "sync": 2 * PARAMETERS / SENT}
    for name, seconds in made.items():
        print(f"{name:<30}{seconds:6.1f} s")
    print(f"{'step, at most':<30}{sum(made.values()) - mean * token:6.1f} s; published: 97.7 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="*", default=[1, 8, 64, 512])
    parser.add_argument("--each", type=int, default=64, help="episodes for each GPU")
    parser.add_argument("--longer", type=float, default=1.0, help="how many times as long as gold replies are")
    parser.add_argument("--seconds", type=float, default=1.0, help="the median time of a user's answer; 0 is a script")
    parser.add_argument("--processes", type=int, default=1, help="processes that play the episodes")
    parser.add_argument("--share", action="store_true", help="compute the prompt of a group once")
    parser.add_argument("--check", action="store_true", help="the formulas beside a published step")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.check:
        check()
        return
    made = [
        step(gpus, options.each, options.longer, options.seconds, options.processes, options.share)
        for gpus in options.gpus
    ]
    if options.json:
        print(json.dumps([asdict(row) | {"rollout": row.rollout, "total": row.total} for row in made], indent=2))
        return
    table = Table("GPUs", "episodes", *PARTS)
    for row in made:
        table.add_row(str(row.gpus), f"{row.episodes:,}", *(f"{getattr(row, part):.1f}" for part in PARTS))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
