"""Cost of SPPO's estimator and actor update beside plain GRPO's, on one recorded batch.

    python tests/benchmarks/sppo_step.py [--repeats 20]

All go through verl's own code (`compute_advantage_for_multi_trajectories`, `ppo_loss`) and a Qwen3 of the toy world's
size; they alternate, in CPU time of one thread, and only the estimator and the policy loss differ. One JSON line.
"""

import argparse
import copy
import json
import statistics
import time

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transformers import Qwen3Config, Qwen3ForCausalLM
from verl.protocol import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

PROMPTS, SAMPLES, PROMPT_LENGTH, RESPONSE_LENGTH = 32, 8, 16, 32
ROWS = PROMPTS * SAMPLES
MINI_BATCH, MICRO_BATCH, VOCABULARY = 128, 64, 512
PAPER = {"scope": "prompt", "score": "winrate", "baseline": "half"}
# name: estimator, policy loss, options of algorithm.sppo
ALGORITHMS = {"sppo": ("sppo", "sppo", {}), "sppo_paper": ("sppo", "sppo", PAPER), "grpo": ("grpo", "vanilla", {})}


def toy_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
    )


def response_log_prob(model: Qwen3ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs of the tokens after the first, `(B, PROMPT_LENGTH + RESPONSE_LENGTH - 1)`."""
    logits = model(tokens[:, :-1]).logits
    return logprobs_from_logits(logits, tokens[:, 1:], inplace_backward=False)


def recorded_batch(model: Qwen3ForCausalLM) -> dict[str, torch.Tensor | np.ndarray]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (ROWS, PROMPT_LENGTH + RESPONSE_LENGTH), generator=generator)
    lengths = torch.randint(4, RESPONSE_LENGTH + 1, (ROWS,), generator=generator)
    rewards = torch.zeros(ROWS, RESPONSE_LENGTH)
    rewards[torch.arange(ROWS), lengths - 1] = torch.randint(0, 2, (ROWS,), generator=generator).float()
    with torch.no_grad():
        old = torch.cat([response_log_prob(model, part) for part in tokens.split(MICRO_BATCH)])
    return {
        "tokens": tokens,
        "lengths": lengths,
        "response_mask": (torch.arange(RESPONSE_LENGTH) < lengths.unsqueeze(1)).long(),
        "token_level_rewards": rewards,
        "old_log_probs": old[:, -RESPONSE_LENGTH:],
        "uid": np.repeat([f"prompt{i}" for i in range(PROMPTS)], SAMPLES).astype(object),
    }


def estimate(batch: dict, estimator: str, options: dict) -> torch.Tensor:
    data = DataProto.from_dict(
        tensors={name: batch[name] for name in ("token_level_rewards", "response_mask")},
        non_tensors={"uid": batch["uid"]},
    )
    keys = [f"{uid}_{row % SAMPLES}_0" for row, uid in enumerate(batch["uid"])]
    config = OmegaConf.create({"adv_estimator": estimator, "sppo": options})
    data = compute_advantage_for_multi_trajectories(
        data, batch_keys=keys, adv_estimator=estimator, num_repeat=SAMPLES, config=config
    )
    return data.batch["advantages"]


def micro_batch_loss(
    model: Qwen3ForCausalLM, config: FSDPActorConfig, batch: dict, advantages: torch.Tensor, rows: slice
) -> torch.Tensor:
    lengths = batch["lengths"][rows].tolist()
    log_prob = response_log_prob(model, batch["tokens"][rows])

    def ragged(padded: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor(
            [row[:length] for row, length in zip(padded[rows], lengths, strict=True)], layout=torch.jagged
        )

    data = TensorDict(
        {
            "prompts": torch.nested.as_nested_tensor(list(batch["tokens"][rows, :PROMPT_LENGTH]), layout=torch.jagged),
            "responses": ragged(batch["tokens"][:, PROMPT_LENGTH:]),
            "response_mask": ragged(batch["response_mask"]),
            "old_log_probs": ragged(batch["old_log_probs"]),
            "advantages": ragged(advantages),
        },
        batch_size=len(lengths),
    )
    tu.assign_non_tensor(
        data, dp_size=1, batch_num_tokens=int(batch["response_mask"].sum()), global_batch_size=MINI_BATCH
    )
    # verl's engines put the log-prob of the next token at each position; the last position has none
    shifted = [
        torch.nn.functional.pad(row[: PROMPT_LENGTH + length - 1], (0, 1))
        for row, length in zip(log_prob, lengths, strict=True)
    ]
    output = {"log_probs": torch.nested.as_nested_tensor(shifted, layout=torch.jagged)}
    loss, _ = ppo_loss(config, output, data)
    return loss


class Contender:
    """One algorithm with its own copy of the model and its optimizer."""

    def __init__(self, name: str, model: Qwen3ForCausalLM):
        self.name = name
        self.estimator, loss_mode, self.options = ALGORITHMS[name]
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.config = FSDPActorConfig(
            strategy="fsdp2",
            rollout_n=SAMPLES,
            ppo_micro_batch_size_per_gpu=MICRO_BATCH,
            policy_loss={"loss_mode": loss_mode},
        )

    def step(self, batch: dict) -> tuple[float, float]:
        """CPU seconds of the estimator and of the update."""
        start = time.process_time()
        advantages = estimate(batch, self.estimator, self.options)
        estimated = time.process_time()
        for mini in range(0, ROWS, MINI_BATCH):
            for micro in range(mini, mini + MINI_BATCH, MICRO_BATCH):
                rows = slice(micro, micro + MICRO_BATCH)
                micro_batch_loss(self.model, self.config, batch, advantages, rows).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return estimated - start, time.process_time() - estimated


def measure(repeats: int) -> dict[str, float | int]:
    """Medians over `repeats` alternating steps, after one of each that is not counted."""
    torch.set_num_threads(1)
    model = toy_model()
    batch = recorded_batch(model)
    contenders = [Contender(name, model) for name in ALGORITHMS]
    times: dict[str, list[tuple[float, float]]] = {contender.name: [] for contender in contenders}
    for repeat in range(repeats + 1):
        # whoever goes second finds warmer caches, so they take turns
        for contender in contenders if repeat % 2 else reversed(contenders):
            seconds = contender.step(batch)
            if repeat:
                times[contender.name].append(seconds)
    totals = {name: statistics.median(map(sum, seconds)) for name, seconds in times.items()}
    result: dict[str, float | int] = {"repeats": repeats, "responses": ROWS}
    result["ratio"] = totals["sppo"] / totals["grpo"]
    result["paper_ratio"] = totals["sppo_paper"] / totals["grpo"]
    for name, seconds in times.items():
        result[f"{name}_step_s"] = totals[name]
        result[f"{name}_estimator_s"] = statistics.median(estimator for estimator, _ in seconds)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    print(json.dumps(measure(parser.parse_args().repeats)))
