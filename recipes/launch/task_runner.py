"""verl's V1 task runner, whose trainer hears requests to save or to end, keeps metrics and evaluates its policy."""

import os

import ray
from verl.trainer.main_ppo import TaskRunnerV1

from recipes.core.run_identity import VARIABLE
from recipes.launch import step_metrics
from recipes.launch.preemption import RayRequests, obey


@ray.remote
class TaskRunner(TaskRunnerV1.__ray_metadata__.modified_class):
    """verl's runner; the trainer exists, and has loaded its checkpoint, once the agent loop manager is made."""

    def init_agent_loop_manager(self) -> None:
        """Make verl's manager, then let the trainer look for requests, and evaluate, at the end of its steps."""
        super().init_agent_loop_manager()
        step_metrics.keep(self.trainer)
        if "evaluation" in self.config:
            from recipes.evaluation.trained_policy import PolicyEvaluation

            PolicyEvaluation(self.trainer)
        obey(self.trainer, RayRequests(os.environ[VARIABLE]))
