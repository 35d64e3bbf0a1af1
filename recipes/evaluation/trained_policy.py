"""Evaluate the policy of a V1 trainer of verl as it trains (`during_training`)."""

import shutil
import time
from typing import Any

from recipes.core.sampling import EndpointEngine
from recipes.errors import EnvironmentProblem
from recipes.evaluation.during_training import BLOCK, log_entries, policy_settings
from recipes.evaluation.main import evaluate
from reward_fns.endpoint import EndpointSettings


class PolicyEvaluation:
    """Evaluates a trainer's policy before the first step, after each `every` steps, and after the last.

    A run that is asked to end early does not begin an evaluation for that.
    """

    def __init__(self) -> None:
        self._finished_step = self._evaluated_step = 0

    def before_training(self, trainer: Any) -> None:
        """Evaluate the policy that training starts from."""
        # A resumed run has its number of step 0 already; verl counts the first step as begun here.
        if trainer.global_steps == 1 and trainer.config.trainer.get("val_before_train", True):
            trainer.logger.log(data=self.evaluate(trainer, 0), step=0)

    def after_step(self, trainer: Any, metrics: dict, timing_raw: dict, *, last: bool) -> None:
        """Add the numbers of the policy to the metrics of a step."""
        self._finished_step = trainer.global_steps
        if last or trainer.global_steps % trainer.config[BLOCK].every == 0:
            began = time.perf_counter()
            metrics.update(self.evaluate(trainer, trainer.global_steps))
            timing_raw[BLOCK] = time.perf_counter() - began

    def after_training(self, trainer: Any) -> None:
        """Evaluate after a last step that verl did not know to be the last."""
        if self._evaluated_step != self._finished_step:
            trainer.logger.log(data=self.evaluate(trainer, self._finished_step), step=self._finished_step)

    def evaluate(self, trainer: Any, step: int) -> dict[str, float]:
        """Evaluate the weights that the rollout engines hold; returns what to log.

        Raises:
            LaunchError: the engines cannot be asked.
        """
        trainer.on_validate_begin()
        try:
            urls = [f"http://{address}/v1" for address in trainer.llm_server_manager.get_addresses()]
            served = EndpointEngine(EndpointSettings(urls[0])).run(lambda endpoint: endpoint.served_models())
            if len(served) != 1:
                raise EnvironmentProblem(f"the rollout engine {urls[0]} serves {sorted(served)}; expected the policy")
            settings = policy_settings(trainer.config, urls, *served, trainer.tokenizer.name_or_path, step)
            # What a killed attempt at this step wrote came from other weights.
            shutil.rmtree(settings.output_dir, ignore_errors=True)
            entries = log_entries(evaluate(settings))
        finally:
            trainer.on_validate_end()
        self._evaluated_step = step
        return entries
