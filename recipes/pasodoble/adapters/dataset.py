"""Held-out problems, in the prompt on which the Solver is trained."""

from verl.utils.dataset.rl_dataset import RLHFDataset

from recipes.pasodoble.prompts import Prompts


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
