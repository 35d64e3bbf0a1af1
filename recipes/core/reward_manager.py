"""The reward manager ``score_skip_fail``: carries Score, Skip and Fail through verl's reward loop.

verl's own managers let an exception end the session, so that a group silently shrinks, and have no limit in time. Here
a call runs under limits, and what it did reaches the trainer under one fixed set of keys (``reward_fns.result``).
"""

import asyncio

from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.utils.reward_score import default_compute_score

from recipes.core import reward_call
from recipes.core.reward_faults import BLOCK, OWN_FUNCTIONS, RewardFaults, is_coroutine_function
from recipes.core.settings import read
from reward_fns.pool import Kind, Outcome, shared_pool
from reward_fns.result import Result, Score, Skip, from_verl, normalise, to_verl

RESPONSE_FAULTS = {Kind.TIME_OUT: "time_out", Kind.MEMORY: "memory", Kind.CRASH: "crash"}


class ScoreSkipFailRewardManager(RewardManagerBase):
    """Runs the configured reward function on one response at a time; see :class:`RewardFaults` for its settings."""

    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        super().__init__(config, tokenizer, compute_score)
        function = config.reward.get("custom_reward_function") or {}
        self.path, self.name = function.get("path"), function.get("name")
        self.keyword_arguments = OmegaConf.to_container(function.get("reward_kwargs") or OmegaConf.create({}))
        self.compute_score = compute_score or default_compute_score
        self.reward_router_address = reward_router_address
        self.reward_model_tokenizer = reward_model_tokenizer
        self.faults = read(RewardFaults, config.algorithm.get("reward_faults"), BLOCK)

    async def run_single(self, data: DataProto) -> dict:
        arguments = await self._arguments(data[-1:][0])
        verdict = to_verl(await self._judge(arguments))
        return {"reward_score": verdict["score"], "reward_extra_info": verdict}

    async def _arguments(self, item) -> dict:
        response = item.batch["responses"]
        length = int(item.batch["attention_mask"][-response.shape[-1] :].sum())
        ids = response[:length]
        fields = item.non_tensor_batch
        extra_info = dict(fields.get("extra_info") or {})
        extra_info.update((fields.get("tool_extra_fields") or {}).items())
        extra_info["num_turns"] = fields.get("__num_turns__")
        extra_info["rollout_reward_scores"] = fields.get("reward_scores", {})
        if self.reward_router_address is not None:
            # A reward model judges the whole conversation.
            extra_info["raw_prompt"] = list(fields["raw_prompt"])
        return {
            "data_source": fields["data_source"],
            "solution_str": await asyncio.get_running_loop().run_in_executor(
                None, lambda: self.tokenizer.decode(ids, skip_special_tokens=True)
            ),
            "ground_truth": fields["reward_model"].get("ground_truth"),
            "extra_info": extra_info,
        }

    async def _judge(self, arguments: dict) -> Result:
        if self._isolated():
            return await self._in_a_process(arguments)
        if self.reward_router_address is not None:
            arguments["reward_router_address"] = self.reward_router_address
            arguments["reward_model_tokenizer"] = self.reward_model_tokenizer
        try:
            if is_coroutine_function(self.compute_score):
                call = self.compute_score(**arguments)
            else:
                call = asyncio.get_running_loop().run_in_executor(None, lambda: self.compute_score(**arguments))
            return normalise(await asyncio.wait_for(call, self._limit()))
        except TimeoutError:
            return Skip(f"no_answer: the reward function took longer than {self._limit():g} s")
        except Exception as error:
            # A user's function may raise anything; the sample is unjudged and the reason is counted.
            return reward_call.raised(error)

    def _limit(self) -> float | None:
        """Our own functions bound themselves, under their own limits."""
        return None if self.path and self.path.startswith(OWN_FUNCTIONS) else self.faults.time_limit

    def _isolated(self) -> bool:
        return self.faults.isolates(self.path, self.compute_score, self.reward_router_address is not None)

    async def _in_a_process(self, arguments: dict) -> Result:
        pool = shared_pool(self.faults.workers, self.faults.memory_limit)
        merged = {**arguments, **self.keyword_arguments}
        outcome = await pool.arun(
            "recipes.core.reward_call:call",
            self.path,
            self.name,
            merged,
            time_limit=self.faults.time_limit,
        )
        return result_of(outcome)


def result_of(outcome: Outcome) -> Result:
    """A limit that a response ran into is its own fault; a worker killed from outside is not, nor a pool that is
    down."""
    if outcome.kind is Kind.DONE:
        return from_verl(outcome.value)
    if outcome.kind in RESPONSE_FAULTS:
        return Score(0.0, RESPONSE_FAULTS[outcome.kind], seconds=outcome.seconds)
    return Skip(f"{outcome.kind.value}: {outcome.detail}", seconds=outcome.seconds)
