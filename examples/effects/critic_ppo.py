"""PPO with a critic on the small policy; the estimator is the recipe's."""

import copy
from dataclasses import dataclass

import torch
from combination_lock import LIMIT, Written
from policy import Responses, copy_of, log_probs_of
from torch import Tensor, nn
from transformers import LlamaModel
from updates import clipped_surrogate

from recipes.step_ppo.advantage import gae

MINI_BATCHES = 2
CRITIC_RATE, LAM = 1e-3, 0.95


def step_places(written: Written, length: int) -> list[int]:
    """Token positions of the scored steps of a response of `length` tokens, its end among them.

    What cannot be read behind the last step is one step more; a response that the limit cut is one step.
    """
    if written.well_formed:
        return written.step_ends
    return [length - 1] if length == LIMIT else [*written.step_ends, length - 1]


@torch.no_grad()
def log_ratios(reference, responses: Responses) -> Tensor:
    """(B, T) log pi - log pi_ref of each written token, 0 where masked: the `kl` of the recipe's penalty in the reward.

    Times a coefficient it is subtracted from the rewards, which verl does for the recipe (`use_kl_in_reward`).
    """
    known = log_probs_of(reference, responses.prompts, responses.ids)
    return torch.where(responses.mask, responses.log_probs - known, 0.0)


class Critic(nn.Module):
    """Values of the state in which each response token was chosen.

    A policy's layers, a new one, and a linear head, zero at first.
    What the policy expected of a step is known at the end of its last layer, so comparing it with what was written
    takes a layer above. The new one begins as the identity.
    """

    def __init__(self, policy):
        super().__init__()
        config = copy.deepcopy(policy.config)
        config.num_hidden_layers += 1
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.trunk = LlamaModel(config)
            self.head = nn.Linear(config.hidden_size, 1)
        self.trunk.load_state_dict(policy.model.state_dict(), strict=False)
        for layer in self.trunk.layers[policy.config.num_hidden_layers :]:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, prompts: Tensor, ids: Tensor) -> Tensor:
        """(B, T)"""
        hidden = self.trunk(torch.cat([prompts, ids], dim=1)).last_hidden_state
        return self.head(hidden[:, prompts.shape[1] - 1 : -1])[..., 0]


@dataclass(frozen=True)
class Learner:
    """What is trained, each with its optimizer."""

    policy: nn.Module
    critic: Critic
    policy_optimizer: torch.optim.Optimizer
    critic_optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, policy, rate: float) -> "Learner":
        """Copies of a policy, one of them with a value head."""
        policy, critic = copy_of(policy), Critic(policy)
        optimizers = (
            torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=0.0)
            for module, lr in ((policy, rate), (critic, CRITIC_RATE))
        )
        return cls(policy, critic, *optimizers)

    def update(self, responses: Responses, rewards: Tensor, generator) -> None:
        """One pass over a batch, in MINI_BATCHES parts."""
        with torch.no_grad():
            values = self.critic(responses.prompts, responses.ids)
        advantages, returns = gae(rewards, values, responses.mask, gamma=1.0, lam=LAM)
        for rows in torch.randperm(len(rewards), generator=generator).chunk(MINI_BATCHES):
            prompts, ids, mask = responses.prompts[rows], responses.ids[rows], responses.mask[rows]
            log_probs = log_probs_of(self.policy, prompts, ids)
            loss = clipped_surrogate(responses.log_probs[rows], log_probs, advantages[rows], mask)
            _descend(self.policy_optimizer, loss)
            error = self.critic(prompts, ids) - returns[rows]
            _descend(self.critic_optimizer, 0.5 * (error.square() * mask).sum() / mask.sum())


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()
