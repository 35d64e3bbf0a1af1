"""verl reward manager `step_ppo`: one request to the PRM per rollout, a reward for each of its tokens."""

import asyncio
import inspect
from typing import Any

from transformers import GenerationConfig
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from recipes.core.reward_call import raised
from recipes.step_ppo.prm_client import token_probabilities
from recipes.step_ppo.rollout_steps import RolloutSteps, rollout_steps
from recipes.step_ppo.settings import StepPPOSettings
from recipes.step_ppo.step_rewards import malformed_rewards, reward_places, token_rewards
from recipes.step_ppo.verifiable import keeps_answer
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError
from reward_fns.result import Fail, Score, Skip, normalise


class StepRewardManager(RewardManagerBase):
    """Scores rollouts as they end.

    `run_single` returns the summed reward, and in `reward_extra_info` always the keys `token_rewards` (T,),
    `step_ends` (where the steps' rewards stand), `acc`, `verified` (whether the gold answer counts beside the PRM),
    `n_steps`, `malformed`, `skipped` and `reason`. A malformed rollout counts as one step with p = 0 and has its
    reason. Where the PRM or the gold answer fails, `skipped` is 1.0 and the trainer takes the rollout out of the
    update; its zeros are never trained on.
    """

    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        super().__init__(config, tokenizer, compute_score)
        self.settings = StepPPOSettings.from_mapping(config.step_ppo)
        self.eos_ids = end_ids(tokenizer, config.actor_rollout_ref.model.path)
        prm = self.settings.prm
        url = prm.url or (f"http://{reward_router_address}" if reward_router_address else None)
        if self.settings.reward.needs_prm and url is None:
            raise ValueError(
                "step rewards need a PRM: set step_ppo.prm.url, or reward.reward_model.enable=true with its own pool"
            )
        self.endpoint = None
        if self.settings.reward.needs_prm:
            name = prm.model or config.reward.reward_model.model_path
            self.endpoint = Endpoint(
                EndpointSettings(
                    url, name, key_variable=None, timeout=prm.timeout, attempts=prm.attempts, max_wait=prm.max_wait
                )
            )

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        item = data[-1:][0]
        prompt, response = unpadded_ids(item)
        steps = rollout_steps(
            self.tokenizer,
            response,
            self.eos_ids,
            style=self.settings.step_style,
            score_truncated=self.settings.score_truncated,
        )
        outcome = await self._outcome(item, response)
        verifiable = self.settings.verifiable
        verified = verifiable.weight > 0 and keeps_answer(prompt, verifiable.share)
        if verified and isinstance(outcome, Skip):
            result = outcome
        else:
            result = await self._rewards(prompt, response, steps, outcome)
        skipped = isinstance(result, Skip)
        rewards = [0.0] * len(response) if skipped else result
        places = reward_places(steps.ends, self.settings.reward, eos_index=steps.eos_index)
        return {
            "reward_score": float(sum(rewards)),
            "reward_extra_info": {
                "token_rewards": rewards,
                "step_ends": [len(response) - 1] if steps.malformed else places,
                "acc": outcome.acc if isinstance(outcome, Score) else 0.0,
                "verified": float(verified),
                "n_steps": float(len(steps.ends)),
                "malformed": float(bool(steps.malformed)),
                "skipped": float(skipped),
                "reason": result.reason if skipped else steps.malformed,
            },
        }

    async def _rewards(
        self, prompt: list[int], response: list[int], steps: RolloutSteps, outcome: Score | Skip
    ) -> "list[float] | Skip":
        config = self.settings.reward
        if steps.malformed == "empty" or (steps.malformed and config.needs_prm):
            return malformed_rewards(len(response), config)
        if config.needs_outcome and isinstance(outcome, Skip):
            return outcome
        values = None
        if config.needs_prm:
            values = await self._values(prompt, response)
            if isinstance(values, Skip):
                return values
        return token_rewards(
            values,
            steps.ends,
            len(response),
            config,
            eos_index=steps.eos_index,
            outcome=outcome.acc if isinstance(outcome, Score) else None,
        )

    async def _values(self, prompt: list[int], response: list[int]) -> "list[float] | Skip":
        """P(good) at each response token."""
        classes = self.settings.prm.classes
        try:
            rows = await token_probabilities(self.endpoint, prompt + response)
        except EndpointError as error:
            return Skip(f"prm_{error.reason}: {error}")
        if max(classes) >= len(rows[0]):
            return Skip(f"prm_classes: step_ppo.prm.classes is {list(classes)}, but the PRM has {len(rows[0])} classes")
        return [sum(row[c] for c in classes) for row in rows[len(prompt) :]]

    async def _outcome(self, item, response: list[int]) -> Score | Skip:
        """The final answer against the gold one, by the configured reward function; a Skip when that fails."""
        gold = item.non_tensor_batch.get("reward_model") or {}
        arguments = {
            "data_source": item.non_tensor_batch.get("data_source"),
            "solution_str": self.tokenizer.decode(response, skip_special_tokens=True),
            "ground_truth": gold.get("ground_truth"),
            "extra_info": item.non_tensor_batch.get("extra_info"),
        }
        try:
            if inspect.iscoroutinefunction(self.compute_score):
                found = normalise(await self.compute_score(**arguments))
            else:
                found = normalise(await asyncio.to_thread(self.compute_score, **arguments))
        except Exception as error:
            # A user's function may raise anything, and verl would end the prompt's whole group over it.
            return raised(error)
        return Skip(found.reason) if isinstance(found, Fail) else found


def unpadded_ids(item) -> tuple[list[int], list[int]]:
    """Prompt and response ids of one row; verl's V1 trainer pads both on the right."""
    prompts, responses, mask = item.batch["prompts"], item.batch["responses"], item.batch["attention_mask"]
    n_prompt, n_response = prompts.shape[-1], responses.shape[-1]
    prompt = prompts[: int(mask[:n_prompt].sum())].tolist()
    return prompt, responses[: int(mask[mask.shape[-1] - n_response :].sum())].tolist()


def end_ids(tokenizer, model_path: str) -> frozenset[int]:
    """Ids that end a response: the tokenizer's EOS, and those of the model's generation config, at which vLLM stops
    too."""
    ids = {tokenizer.eos_token_id}
    try:
        more = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        more = None
    ids |= set(more) if isinstance(more, list | tuple) else {more}
    return frozenset(i for i in ids if i is not None)
