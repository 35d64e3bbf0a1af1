"""A recorded batch, and verl's own actor loss on it."""

import torch
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig
from verl.workers.utils.losses import ppo_loss

PROMPT, LENGTHS = 3, (5, 4, 6, 5)
VOCABULARY, CLIP = 11, 0.2


def recorded_batch(seed=0):
    """Four responses to one prompt, two authors, rewards, and log-probs that a few updates moved apart."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in LENGTHS:
        old = torch.randn(length, generator=generator)
        rows.append(
            {
                "new": old + 0.3 * torch.randn(length, generator=generator),
                "old": old,
                "mask": torch.randint(0, 2, (length,), generator=generator),
            }
        )
    return rows, torch.tensor([1.0, 0.0, 0.0, 1.0])


def advantages_of(masks, rewards):
    padded = pad_sequence(masks, batch_first=True)
    token_rewards = torch.zeros(padded.shape)
    token_rewards[:, 0] = rewards
    found, _ = compute_grpo_outcome_advantage(token_rewards, padded.float(), index=["prompt"] * len(masks))
    return [row[: len(mask)] for row, mask in zip(found, masks, strict=True)]


def jagged(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def actor_config():
    return FSDPActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_mini_batch_size=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=CLIP,
        clip_ratio_low=CLIP,
        clip_ratio_high=CLIP,
        optim=FSDPOptimizerConfig(lr=1e-6),
    )


def loss_of(rows, masks, advantages, select=None, tokens=None):
    """`ppo_loss` on the chosen rows as one micro-batch of the batch; returns it with the log-prob leaves."""
    chosen = range(len(rows)) if select is None else select
    leaves = {i: rows[i]["new"].clone().requires_grad_() for i in chosen}
    # verl's model output covers prompt and response, each position holding the log-prob of the token after it.
    whole = [torch.cat([torch.zeros(PROMPT - 1), leaf, torch.zeros(1)]) for leaf in leaves.values()]
    data = TensorDict(
        {
            "prompts": jagged(torch.zeros(PROMPT, dtype=torch.long) for _ in chosen),
            "responses": jagged(torch.zeros(len(masks[i]), dtype=torch.long) for i in chosen),
            "attention_mask": jagged(torch.ones(PROMPT + len(masks[i]), dtype=torch.long) for i in chosen),
            "response_mask": jagged(masks[i] for i in chosen),
            "old_log_probs": jagged(rows[i]["old"] for i in chosen),
            "advantages": jagged(advantages[i] for i in chosen),
        },
        batch_size=len(leaves),
    )
    total = int(sum(mask.sum() for mask in masks)) if tokens is None else tokens
    for name, value in {"dp_size": 1, "batch_num_tokens": total, "global_batch_size": len(rows)}.items():
        data.set_non_tensor(name, value)
    loss, _ = ppo_loss(actor_config(), {"log_probs": jagged(whole)}, data)
    return loss, leaves


def gradient(rows, masks, advantages, splits=None, tokens=None):
    """Summed over micro-batches, per row."""
    found = {}
    for select in splits or [range(len(rows))]:
        loss, leaves = loss_of(rows, masks, advantages, select, tokens)
        loss.backward()
        found |= {i: leaf.grad for i, leaf in leaves.items()}
    return [found[i] for i in range(len(rows))]
