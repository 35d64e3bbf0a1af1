"""Prompts: from a problem to token ids, or to the messages of a chat endpoint, every choice explicit."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from recipes.errors import ConfigError
from recipes.evaluation.benchmarks import PROMPT_FIELDS, Benchmark, Problem
from recipes.evaluation.mmlu_pro import LETTERS, few_shot_prompt, format_question

OWN_SHOTS = "own"


@dataclass(frozen=True)
class PromptOptions:
    """How a question becomes a prompt.

    Attributes:
        chat_template: apply the tokenizer's chat template; False gives the bare text to a base model.
        system: system message, with the chat template only.
        thinking: value of the template's `enable_thinking`; None leaves it to the template.
        bos: put the tokenizer's BOS token in front; None does what the tokenizer does by itself (a chat template
            brings its own).
        few_shot: a preset of worked examples (config/few_shot) put in front of the question; "own" for those that the
            benchmark brings (MMLU-Pro), as many as leave room for the question.
        template: overrides the benchmark's own prompt; `{question}` and `{options}` are replaced.
        suffix: text after the prompt, such as a newline.
    """

    chat_template: bool = True
    system: str | None = None
    thinking: bool | None = None
    bos: bool | None = None
    few_shot: str | None = None
    template: str | None = None
    suffix: str = ""


def question_text(problem: Problem, benchmark: Benchmark, options: PromptOptions) -> str:
    """The text a model is asked. Plain replacement: a question may hold braces."""
    if len(problem.options) > len(LETTERS):
        raise ConfigError(f"found {len(problem.options)} options; at most {len(LETTERS)} have letters")
    listed = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, problem.options, strict=False))
    text = (options.template or benchmark.prompt).replace("{options}", listed)
    for name in PROMPT_FIELDS:
        text = text.replace("{" + name + "}", str(problem.fields.get(name, "")))
    return few_shot_text(options.few_shot) + text.replace("{question}", problem.question) + options.suffix


def few_shot_text(preset: str | None) -> str:
    """The worked examples of a preset, each with its answer, separated by blank lines.

    Raises:
        ConfigError: no such preset.
    """
    if preset is None:
        return ""
    folder = files("recipes.evaluation").joinpath("config", "few_shot")
    path = folder.joinpath(f"{preset}.yaml")
    if not path.is_file():
        presets = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir())
        raise ConfigError(f"no few-shot preset {preset!r}; there are {', '.join(presets)}", "prompt.few_shot")
    card = yaml.safe_load(path.read_text(encoding="utf-8"))
    shots = [
        card["template"].replace("{question}", shot["question"]).replace("{answer}", shot["answer"])
        for shot in card["shots"]
    ]
    return "".join(shot.rstrip("\n") + "\n\n" for shot in shots)


def messages(problem: Problem, benchmark: Benchmark, options: PromptOptions) -> list[dict[str, str]]:
    """The conversation that a chat template or a chat endpoint gets."""
    system = [{"role": "system", "content": options.system}] if options.system else []
    if problem.messages and options.template is None:
        return system + [dict(message) for message in problem.messages]
    return [*system, {"role": "user", "content": question_text(problem, benchmark, options)}]


def encode(tokenizer: Any, problem: Problem, benchmark: Benchmark, options: PromptOptions) -> list[int]:
    """Token ids of the prompt.

    Raises:
        ConfigError: a chat template is asked for and the tokenizer has none, or BOS and it has none.
    """
    if options.chat_template:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "the tokenizer has no chat template; for a base model set prompt.chat_template=false, or give the "
                "model a tokenizer with one",
                "prompt.chat_template",
            )
        extra = {} if options.thinking is None else {"enable_thinking": options.thinking}
        text = tokenizer.apply_chat_template(
            messages(problem, benchmark, options), tokenize=False, add_generation_prompt=True, **extra
        )
        return _with_bos(tokenizer, tokenizer.encode(text, add_special_tokens=False), options.bos)
    if options.few_shot == OWN_SHOTS:
        text, _ = few_shot_prompt(
            problem.group,
            benchmark.shots.get(problem.group, ()),
            format_question(problem.question, problem.options),
            lambda prompt: len(tokenizer.encode(prompt)),
        )
    else:
        text = problem.question if problem.messages else question_text(problem, benchmark, options)
    return _with_bos(tokenizer, tokenizer.encode(text, add_special_tokens=options.bos is None), options.bos)


def _with_bos(tokenizer: Any, ids: list[int], bos: bool | None) -> list[int]:
    if bos is None:
        return ids
    token = tokenizer.bos_token_id
    if token is None:
        if bos:
            raise ConfigError("prompt.bos=true, but the tokenizer has no BOS token", "prompt.bos")
        return ids
    bare = ids[1:] if ids[:1] == [token] else ids
    return [token, *bare] if bos else bare
