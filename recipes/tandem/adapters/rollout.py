"""verl's agent-loop manager, which marks validation prompts with their authors."""

from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils import tensordict_utils as tu

from recipes.tandem.adapters.agent_loop import SOLO, VALIDATION_AUTHORS


class TandemAgentLoopManager(AgentLoopManagerTQ):
    """Add to each validation prompt who writes its response; verl's loops cannot recognise validation otherwise.

    Attributes:
        validation_authors: `solo` or `joint`, set by the trainer before each validation pass.
    """

    validation_authors = SOLO

    def generate_sequences(self, prompts) -> None:
        if tu.get(prompts, "validate", default=False):
            tu.assign_non_tensor_data(prompts, VALIDATION_AUTHORS, self.validation_authors)
        super().generate_sequences(prompts)
