"""Prompts of the two roles. The Solver's is a function of the question alone.

Source: PasoDoble, ``prompt.py`` (structure; the wording is ours) and ``get_prompt`` in ``pasodoble_online.py``.
"""

from dataclasses import dataclass
from typing import Any

from recipes.core.settings import read

THINK = "<think>"

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Prompts:
    """The five texts of the game.

    ``{knowledge}`` and ``{question}`` are replaced as plain text and every other brace stays as it is, because
    documents and problems are full of LaTeX.
    """

    proposer_system: str = (
        "You are the proposer in a game between a proposer and a solver. Write one mathematics problem that is hard, "
        "well structured, unlike the usual exercises, and unambiguous, and whose answer can be verified.\n\n"
        "Put the problem between <problem> and </problem>.\n"
        "Then put a worked solution, step by step and with a short check of the result, between <answer> and "
        "</answer>.\n"
        "Inside the answer block, give the final result in \\boxed{}."
    )
    proposer_user: str = (
        "External knowledge: {knowledge}\n\nUsing this text and what you know yourself, write a mathematics problem "
        "that is hard, well structured, diverse and unambiguous, and whose answer can be verified."
    )
    proposer_user_without_knowledge: str = (
        "Write a mathematics problem that is hard, well structured, diverse and unambiguous, and whose answer can be "
        "verified."
    )
    solver_system: str = (
        "You are the solver in a game between a proposer and a solver. Solve the problem that the proposer wrote.\n\n"
        "Put your answer between <answer> and </answer>."
    )
    solver_box_request: str = "\nGive the final result in \\boxed{} inside the answer block."
    solver_user: str = "{question}"

    def __post_init__(self) -> None:
        for name, placeholder in (("proposer_user", "{knowledge}"), ("solver_user", "{question}")):
            if placeholder not in getattr(self, name):
                raise ValueError(f"prompts.{name} has no {placeholder}: the text it must carry would be lost")

    @classmethod
    def from_config(cls, config: dict[str, str] | None) -> "Prompts":
        """Replace some texts by those of a config. Raises ConfigError for a name that is not a prompt."""
        return read(cls, config, "pasodoble.prompts")

    def for_proposer(self, knowledge: str | None) -> Messages:
        """Build the messages for one proposal; ``None`` leaves the knowledge sentence out (``use_knowledge = 0``)."""
        if knowledge is None:
            user = self.proposer_user_without_knowledge
        else:
            user = self.proposer_user.replace("{knowledge}", knowledge)
        return _chat(self.proposer_system, user)

    def for_solver(self, question: str, *, request_box: bool = True) -> Messages:
        """Build the messages for one answer.

        ``request_box=False`` is the original prompt, which leaves the habit of boxing to the supervised start.
        """
        system = self.solver_system + (self.solver_box_request if request_box else "")
        return _chat(system, self.solver_user.replace("{question}", question))


def _chat(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def open_thinking(text: str) -> str:
    """Return what makes a rendered prompt end in an open ``<think>``: empty if it already does."""
    return "" if text.endswith((THINK, THINK + "\n")) else THINK + "\n"


def render(tokenizer: Any, messages: Messages) -> str:
    """Render ``messages`` as a prompt that ends in an open ``<think>`` line.

    Raises ValueError if the tokenizer has no chat template.
    """
    require_chat_template(tokenizer)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text + open_thinking(text)


def spells_control_token(tokenizer: Any, text: str) -> bool:
    """Whether a control token stands in ``text``: in a prompt it could end the question and open a turn of its own."""
    # A tokenizer's file may mark a token as special (<|im_start|>) and name it in none of the tokenizer's own lists.
    added = getattr(tokenizer, "added_tokens_decoder", {})
    control = {i for i, token in added.items() if token.special} | {*tokenizer.all_special_ids}
    return not control.isdisjoint(tokenizer(text, add_special_tokens=False)["input_ids"])


def require_chat_template(tokenizer: Any) -> None:
    """Raises ValueError if the tokenizer has no chat template."""
    if not getattr(tokenizer, "chat_template", None):
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        raise ValueError(
            f"the tokenizer of {name!r} has no chat template: use the tokenizer of the instruct or of the fine-tuned "
            "checkpoint, or set tokenizer.chat_template and save it beside the model"
        )
