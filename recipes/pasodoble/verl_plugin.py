"""The parts that verl's config names: agent loop, held-out data, replay buffer.

Source of the loop: PasoDoble, ``get_prompt``: both roles' prompts end in ``<think>`` and a newline, whatever the
template does. Two policies write into one TransferQueue partition: each role takes only what it asked for.
"""

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.dataset.rl_dataset import RLHFDataset

from recipes.pasodoble.prompts import Prompts, open_thinking


class OpenThinkingAgentLoop(SingleTurnAgentLoop):
    """verl's single-turn loop, whose prompt is completed by ``<think>`` where the template does not end in it."""

    async def ct_build_initial_tokens(self, messages, *args, **kwargs) -> list[int]:
        """Token ids of the prompt; too long ones lose their beginning, never the open block."""
        prompt_ids = await super().ct_build_initial_tokens(messages, *args, **kwargs)
        tail = self.tokenizer.decode(prompt_ids[-8:])
        suffix = self.tokenizer.encode(open_thinking(tail), add_special_tokens=False)
        return (prompt_ids + suffix)[-self.rollout_config.prompt_length :]


class SolverProblems(RLHFDataset):
    """verl's dataset, whose last user message becomes the question of the Solver's prompt.

    ``data.solver_prompt`` holds ``request_box`` and ``texts``, as ``pasodoble.request_box`` and ``pasodoble.prompts``.
    """

    def _build_messages(self, example: dict, key: str):
        messages = super()._build_messages(example, key)
        questions = [message["content"] for message in messages if message["role"] == "user"]
        if len(questions) != 1 or not isinstance(questions[0], str):
            raise ValueError(
                f"a held-out problem must have one user message of text, found {len(questions)}: {messages}"
            )
        options = self.config.solver_prompt
        return Prompts.from_config(options.texts).for_solver(questions[0], request_box=options.request_box)


POLL_SECONDS = 0.05


class RoleReplayBuffer(ReplayBuffer):
    """verl's buffer, restricted in training to the prompt groups named by ``own_uids``."""

    def __init__(self, **kwargs):
        kwargs.setdefault("poll_interval", POLL_SECONDS)
        super().__init__(**kwargs)
        self.own_uids: set[str] = set()

    def _sampleable_terminal_keys(self, partition_id, eviction_reasons):
        keys = super()._sampleable_terminal_keys(partition_id, eviction_reasons)
        return keys & self.own_uids if partition_id == "train" else keys
