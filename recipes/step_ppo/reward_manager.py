"""verl reward manager `step_ppo`: one request to the PRM per rollout, a reward for each of its tokens."""

from dataclasses import replace
from typing import Any

from transformers import GenerationConfig
from verl import DataProto

from recipes.core.reward_manager import ScoreSkipFailRewardManager
from recipes.step_ppo.prm_client import token_probabilities
from recipes.step_ppo.rewards import reward_places, token_rewards
from recipes.step_ppo.settings import StepPPOSettings
from recipes.step_ppo.tokens import RolloutSteps, rollout_steps
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError
from reward_fns.result import Result, Score, Skip, to_verl


class StepRewardManager(ScoreSkipFailRewardManager):
    """Scores rollouts as they end; the gold answer is checked by the configured reward function, as in every recipe.

    `run_single` returns the summed reward, and in `reward_extra_info` beside the keys of every recipe `token_rewards`
    (T,), `n_steps`, `malformed` and `process`, the sum of what the steps earned; `acc` is the gold answer's. A
    malformed rollout counts as one step with p = 0 and has its reason. Where the PRM or the gold answer fails, the
    verdict is a Skip and the trainer takes the rollout out of the update; its zeros are never trained on.
    """

    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        super().__init__(config, tokenizer, compute_score)
        self.settings = StepPPOSettings.from_mapping(config.step_ppo)
        self.eos_ids = end_ids(tokenizer, config.actor_rollout_ref.model.path)
        prm = self.settings.prm
        url = prm.url or (f"http://{reward_router_address}" if reward_router_address else None)
        if self.settings.reward.needs_prm and url is None:
            raise ValueError(
                "step rewards need a PRM: set step_ppo.prm.url, or reward.reward_model.enable=true with its own pool; "
                "or step_ppo.reward.values=function"
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
        outcome = await self._judge(await self._arguments(item))
        rewards = await self._rewards(prompt, response, steps, outcome)
        acc, reason = (outcome.acc, outcome.reason) if isinstance(outcome, Score) else (0.0, "")
        process = 0.0
        if isinstance(rewards, list):
            process = sum(rewards)
            if self.settings.reward.centre:
                config = replace(self.settings.reward, mode="outcome")
                rewards = token_rewards(None, [], len(response), config, eos_index=steps.eos_index, outcome=acc)
            verdict: Result = Score(sum(rewards), steps.malformed or reason, acc=acc)
        else:
            verdict, rewards = rewards, [0.0] * len(response)
        return {
            "reward_score": float(sum(rewards)),
            "reward_extra_info": {
                **to_verl(verdict),
                "acc": acc,
                "token_rewards": rewards,
                "n_steps": float(len(steps.ends)),
                "malformed": float(bool(steps.malformed)),
                "process": process,
            },
        }

    async def _rewards(
        self, prompt: list[int], response: list[int], steps: RolloutSteps, outcome: Result
    ) -> list[float] | Result:
        config = self.settings.reward
        if config.centre and not isinstance(outcome, Score):
            # A malformed one too: its outcome counts.
            return outcome
        if steps.malformed == "empty" or (steps.malformed and config.mode != "outcome"):
            return [0.0] * len(response)
        if (config.needs_outcome or config.values == "function") and not isinstance(outcome, Score):
            return outcome
        values = None
        if config.values == "function" and config.mode != "outcome":
            scores = outcome.step_scores if isinstance(outcome, Score) else None
            if scores is None or len(scores) != len(steps.ends):
                count = "none" if scores is None else len(scores)
                return Skip(f"step_scores: {count} for {len(steps.ends)} steps")
            values = [0.0] * len(response)
            for place, value in zip(reward_places(steps.ends, config, eos_index=steps.eos_index), scores, strict=True):
                values[place] = value
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

    async def _values(self, prompt: list[int], response: list[int]) -> list[float] | Skip:
        """P(good) at each response token."""
        classes = self.settings.prm.classes
        try:
            rows = await token_probabilities(self.endpoint, prompt + response)
        except EndpointError as error:
            return Skip(f"prm_{error.reason}: {error}")
        if max(classes) >= len(rows[0]):
            return Skip(f"prm_classes: step_ppo.prm.classes is {list(classes)}, but the PRM has {len(rows[0])} classes")
        return [sum(row[c] for c in classes) for row in rows[len(prompt) :]]


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
