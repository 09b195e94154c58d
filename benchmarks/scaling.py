"""Calculate the parts of a training step on 1, 8, 64 and 512 GPUs from published rates and the results of `load.py`.

    python benchmarks/scaling.py [--each 64] [--longer 1] [--seconds 1.0] [--processes 1] [--share] [--check] [--json]

Nothing is measured here. Every constant names its source; docs/archive/scaling.md has the formulas. The step is a
synchronous GRPO step of a policy with 8 billion parameters, whose GPUs first generate and then train. `--longer 10`
makes replies ten times as long as gold ones, like those of a reasoning model. `--share` computes a group's prompt
once; SkyRL computes it in every episode. `--prompt`, `--sampled` and `--observed` are the mean tokens of an episode of
your own tasks (`understudy train CONFIG --dry-run` prints them), and `--hour` is the price of a GPU for an hour.
"""

import argparse
import json
import random
import statistics
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

PROMPT, SAMPLED, OBSERVED = 2675, 175, 336
"""Mean tokens of a gold episode over the 500 test tasks of the five domains, as SkyRL's generator builds them with
Qwen2.5's tokenizer (tests/sources/test_skyrl_gym.py): the prompt with domain policy and tools, the replies, and the
observations.
"""
TEXTS = 3.3
"""Mean number of replies that the user answers, out of 7.4 replies of an episode."""
ENVIRONMENT = 1 / 321
"""CPU seconds of an episode with scripted users (`load.py`), measured on cores that other programs used too."""
REQUEST = 0.0025
"""CPU seconds of a request to a user's endpoint in the process that plays (`load.py --user http`), measured on such
cores.
"""
SIGMA = 0.5
"""Standard deviation of the logarithm of a user's response time, as in `load.py`. The median is `--seconds`."""

PARAMETERS, KV_BYTES = 8.03e9, 2 * 2 * 32 * 8 * 128
"""Bytes of keys and values per token of Llama-3.1-8B, by its config.json: 32 layers, 8 heads, 128 dimensions, 2
bytes.
"""
BANDWIDTH = 3.35e12 * 0.77
"""Bytes per second that decoding reads: the bandwidth of an H100 SXM (NVIDIA's data sheet), times the share that vLLM
was measured to reach with an 8B model on an A100 (johnmusgrave.com/p/vllm-throughput-latency-sweep-on).
"""
TRAINED = {1: 5762.0, 8: 5762.0, 64: 5605.0, 512: 5605.0}
"""Tokens per second and GPU, forward and backward, in bfloat16 with FSDP, on 8 and on 128 H100 (pytorch/torchtitan,
benchmarks/llama3_h100_202412_torchtitan.md). The rate of 8 is used for 1 GPU, the rate of 128 for 512.
"""
FORWARD = 3.0
"""Speed of a forward pass alone, relative to forward and backward: it takes 2 of 6 floating point operations per
parameter and token.
"""
PASSES = 2
"""Forward passes before the update: that of the policy, and that of the reference for the KL penalty, which is
SkyRL's default.
"""
SENT = 134e9 / 14.955
"""Bytes per second of SkyRL's broadcast of new weights: 67 billion parameters from 32 H100 to 8, in a fork of SkyRL
(github.com/marin-community/marin/issues/8955).
"""
GROUP = 8
"""Episodes per task."""


PARTS = ("decode", "prefill", "users", "environments", "rollout", "forward", "update", "sync", "total")


@dataclass(frozen=True)
class Step:
    """Seconds of the parts of a step."""

    gpus: int
    episodes: int
    decode: float
    prefill: float
    users: float
    """Total wait for users in the slowest episode."""
    environments: float
    """CPU time of environments and of requests to users, in each of the processes that play."""
    forward: float
    update: float
    sync: float

    @property
    def rollout(self) -> float:
        """Seconds of the rollout. An episode waits for tokens and users in turn; the processes that play work
        meanwhile and may be the bottleneck.
        """
        return max(self.decode + self.prefill + self.users, self.environments)

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.rollout + self.forward + self.update + self.sync


@dataclass(frozen=True)
class EpisodeTokens:
    """Mean tokens of an episode."""

    prompt: float = PROMPT
    sampled: float = SAMPLED
    observed: float = OBSERVED


def step(gpus: int, each: int, tokens: EpisodeTokens, seconds: float, processes: int, share: bool) -> Step:
    """Return the step on `gpus` GPUs with `each` episodes per GPU."""
    episodes, sampled = gpus * each, tokens.sampled
    context = tokens.prompt + (sampled + tokens.observed) / 2  # mean over an episode
    token = (2 * PARAMETERS + each * context * KV_BYTES) / BANDWIDTH
    trained = TRAINED[min(TRAINED, key=lambda known: abs(known - gpus))]
    learned = each * (tokens.prompt / (GROUP if share else 1) + sampled + tokens.observed)
    requests = TEXTS if seconds else 0.0
    return Step(
        gpus=gpus,
        episodes=episodes,
        decode=sampled * token,
        prefill=(tokens.prompt * each / GROUP + each * tokens.observed) / (trained * FORWARD),
        users=slowest(episodes, seconds),
        environments=episodes * (ENVIRONMENT + requests * REQUEST) / processes,
        forward=PASSES * learned / (trained * FORWARD),
        update=learned / trained,
        sync=2 * PARAMETERS / SENT,
    )


def slowest(episodes: int, seconds: float) -> float:
    """Return the wait for users of the slowest episode: the median of 9 draws, or of 3 from 10,000 episodes on."""
    if not seconds:
        return 0.0
    chance = random.Random(0)
    draws = [max(waited(chance) for _ in range(episodes)) for _ in range(9 if episodes < 10_000 else 3)]
    return seconds * statistics.median(draws)


def waited(chance: random.Random) -> float:
    return sum(chance.lognormvariate(0.0, SIGMA) for _ in range(round(TEXTS)))


def check() -> None:
    """Compare the formulas with a published step: NeMo RL v0.4, Llama-3.1-8B on 16 H100, on policy.

    2,048 sequences of 1,060 tokens on average and 4,096 at most took 97.7 s (github.com/NVIDIA-NeMo/RL,
    docs/about/performance-summary.md). Prompts are counted as replies, and batches as full until the longest sequence
    ends.
    """
    each, mean, longest = 2048 / 16, 1060, 4096
    token = (2 * PARAMETERS + each * mean / 2 * KV_BYTES) / BANDWIDTH
    learned = each * mean / TRAINED[8]
    made = {"decode, all of mean length": mean * token, "decode, until the longest ends": longest * token}
    made |= {"forward": PASSES * learned / FORWARD, "update": learned, "sync": 2 * PARAMETERS / SENT}
    for name, seconds in made.items():
        print(f"{name:<32}{seconds:6.1f} s")
    print(f"{'step, upper bound':<32}{sum(made.values()) - mean * token:6.1f} s; published: 97.7 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="*", default=[1, 8, 64, 512], help="numbers of GPUs")
    parser.add_argument("--each", type=int, default=64, help="episodes per GPU (default: %(default)s)")
    parser.add_argument(
        "--longer",
        type=float,
        default=1.0,
        help="length of replies, as a multiple of gold replies (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        help="median response time of a user; 0: scripted users (default: %(default)s)",
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="processes that run the episodes (default: %(default)s)"
    )
    for name, of in (("prompt", PROMPT), ("sampled", SAMPLED), ("observed", OBSERVED)):
        parser.add_argument(
            f"--{name}", type=float, default=of, help=f"{name} tokens of an episode, mean (default: %(default)s)"
        )
    parser.add_argument("--steps", type=int, default=100, help="steps of a run, for its price (default: %(default)s)")
    parser.add_argument("--hour", type=float, default=0.0, help="price of a GPU for an hour, for the price of a run")
    parser.add_argument("--share", action="store_true", help="compute a group's prompt once")
    parser.add_argument("--check", action="store_true", help="compare the formulas with a published step")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    if options.check:
        check()
        return
    tokens = EpisodeTokens(options.prompt, options.sampled * options.longer, options.observed)
    made = [
        step(gpus, options.each, tokens, options.seconds, options.processes, options.share) for gpus in options.gpus
    ]
    if options.json:
        print(json.dumps([asdict(row) | {"rollout": row.rollout, "total": row.total} for row in made], indent=2))
        return
    table = Table("GPUs", "episodes", *PARTS, title="seconds of the parts of a step")
    for row in made:
        table.add_row(str(row.gpus), f"{row.episodes:,}", *(f"{getattr(row, part):.1f}" for part in PARTS))
    Console(width=110).print(table)
    if options.hour:
        for row in made:
            hours = row.gpus * row.total * options.steps / 3600
            print(f"{options.steps} steps on {row.gpus} GPUs: {hours:.1f} GPU hours, price {hours * options.hour:.0f}")


if __name__ == "__main__":
    main()
