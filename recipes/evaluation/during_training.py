"""Evaluation of the policy while it trains: `evaluation.every=N evaluation.benchmarks=[math_500]` for any recipe.

Arguments that begin with `evaluation.` are those of `python -m recipes.evaluation.main`, without what training
decides: the policy's own rollout engines write the responses, with the weights of that step. Prompts, seeds, grading
and statistics are those of the command, so that it gives the same numbers on the weights that were saved.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.errors import ConfigError
from recipes.evaluation.benchmark import Benchmark
from recipes.evaluation.main import load_benchmarks
from recipes.evaluation.prompts import encode
from recipes.evaluation.sampling import resolve
from recipes.evaluation.settings import ModelSpec, Settings, read_settings

BLOCK = "evaluation"
TRAINERS_SIDE = "recipes.evaluation.trained_policy.PolicyEvaluation"
"""The class that a trainer makes where its config has the block."""
POLICY = "policy"
DECIDED_BY_TRAINING = ("models", "engine", "engines", "score_only", "output_dir")
# A handoff is a reading beside the policy alone here, never instead of it.
READINGS_INSTEAD = ("handoff.partner", "handoff.by", "handoff.solo", "legibility.partner")
TANDEM_ROLLOUT = "tandem_vllm"
JUNIOR = "junior"
# The junior of a tandem engine reads on the driver's processor.
LEGIBILITY_RESPONSES = 64


def split(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides of the evaluation, without their prefix, and the others."""
    own = [item for item in overrides if item.lstrip("+~").startswith(f"{BLOCK}.")]
    return [item.replace(f"{BLOCK}.", "", 1) for item in own], [item for item in overrides if item not in own]


def read_block(arguments: Sequence[str], max_tokens: int, junior: str | None = None) -> dict[str, Any]:
    """The block `evaluation` of a run's config: how often, and the arguments of the evaluation.

    Args:
        arguments: overrides without their prefix; `every` is the number of steps between evaluations.
        max_tokens: response limit where the arguments set none.
        junior: value of `partner.model` where readings are asked for without one.

    Raises:
        ConfigError: no or a bad `every`, what training decides, or what the evaluation itself refuses.
    """
    every = [item.partition("=")[2] for item in arguments if item.partition("=")[0] == "every"]
    others = [item for item in arguments if item.partition("=")[0] != "every"]
    if not every or not every[-1].isdecimal() or int(every[-1]) < 1:
        raise ConfigError(
            f"{BLOCK}.every: expected a number of steps from 1, found {every[-1] if every else 'none'}; "
            f"evaluation during training needs {BLOCK}.every=N {BLOCK}.benchmarks=[...]",
            f"{BLOCK}.every",
        )
    for item in others:
        key = item.lstrip("+~").partition("=")[0]
        root = key.partition(".")[0]
        if root in DECIDED_BY_TRAINING:
            raise ConfigError(
                f"{BLOCK}.{root} has no place in training: the policy's rollout engines write the responses, and the "
                "run's folder of checkpoints gets the results",
                f"{BLOCK}.{root}",
            )
        if key in READINGS_INSTEAD:
            raise ConfigError(
                f"{BLOCK}.{key} has no place in training: the policy is evaluated alone, and beside it with a partner "
                f"where {BLOCK}.partner.readings=[...] asks for it",
                f"{BLOCK}.{key}",
            )
    asked = {item.lstrip("+~").partition("=")[0] for item in others}
    if "partner.readings" in asked and "partner.model" not in asked:
        if junior is None:
            raise ConfigError(
                f"{BLOCK}.partner.readings needs a partner, and this run has no junior: give "
                f"'{BLOCK}.partner.model={{endpoint: http://host:port/v1, model: NAME, tokenizer: PATH}}'",
                f"{BLOCK}.partner.model",
            )
        others.append(f"partner.model={junior}")
        if "legibility.responses" not in asked:
            others.append(f"legibility.responses={LEGIBILITY_RESPONSES}")
    elif (readings := _settings(others).readings) is not None and not readings.model.endpoints:
        raise ConfigError(
            f"{BLOCK}.partner.model={readings.model.path} would have to be loaded beside the rollout engines; give "
            f"'{{endpoint: http://host:port/v1, model: NAME, tokenizer: PATH}}', or nothing where the engines hold it",
            f"{BLOCK}.partner.model",
        )
    if _settings(others).sampling["max_tokens"] is None:
        others.append(f"sampling.max_tokens={max_tokens}")
    return {"_target_": TRAINERS_SIDE, "every": int(every[-1]), "arguments": others}


def add(config: Any, arguments: Sequence[str]) -> None:
    """Add the block `evaluation` to a run's config; refuse, before anything is started, what cannot be evaluated.

    Args:
        config: composed; changed in place.
        arguments: overrides without their prefix.

    Raises:
        LaunchError: another engine than vLLM's, a LoRA adapter, missing data, prompts that do not fit the engine, or
            another verl than the known one.
    """
    from omegaconf import open_dict

    with open_dict(config):
        config[BLOCK] = read_block(arguments, config.data.max_response_length, junior_of(config))
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    if rollout.name not in ("vllm", TANDEM_ROLLOUT):
        raise ConfigError(
            f"{BLOCK}.every needs vLLM's rollout engine, found actor_rollout_ref.rollout.name={rollout.name}",
            "actor_rollout_ref.rollout.name",
        )
    lora = model.get("lora") or {}
    if (lora.get("rank") or model.get("lora_rank") or 0) > 0 and not lora.get("merge"):
        raise ConfigError(
            f"{BLOCK}.every would ask the rollout engine's base model, without the LoRA adapter; set "
            "actor_rollout_ref.model.lora.merge=true, or evaluate the checkpoints",
            "actor_rollout_ref.model.lora.merge",
        )
    if model.get("custom_chat_template"):
        raise ConfigError(
            f"{BLOCK}.every takes the chat template of the tokenizer; save custom_chat_template with it instead",
            "actor_rollout_ref.model.custom_chat_template",
        )
    from transformers import AutoTokenizer

    from recipes.core import compat

    settings = _settings(config[BLOCK].arguments)
    tokenizer = AutoTokenizer.from_pretrained(
        model.get("tokenizer_path") or model.path, trust_remote_code=bool(model.get("trust_remote_code"))
    )
    window = rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
    for benchmark in load_benchmarks(settings):
        require_fit(benchmark, tokenizer, settings, window)
    compat.require("recipes/evaluation/trained_policy.py")


def junior_of(config: Any) -> str | None:
    """The junior of a tandem run as `partner.model` names it: beside the policy in a tandem engine, or behind an
    endpoint on the portable path; None where the run has none."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == TANDEM_ROLLOUT:
        section = ((rollout.get("engine_kwargs") or {}).get("vllm") or {}).get("tandem_config") or {}
        # `frozen_model` is the published name, which wins (`recipes.tandem`).
        return f"{{name: {JUNIOR}, path: {json.dumps(section.get('frozen_model') or section.get('junior_model'))}}}"
    portable = ((config.get("algorithm") or {}).get("tandem") or {}).get("portable") or {}
    if not portable.get("junior_url"):
        return None
    model = config.actor_rollout_ref.model
    values = (JUNIOR, portable.junior_url, portable.junior_name, model.get("tokenizer_path") or model.path)
    keys = ("name", "endpoint", "model", "tokenizer")
    return "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in zip(keys, values, strict=True)) + "}"


def require_fit(benchmark: Benchmark, tokenizer: Any, settings: Settings, window: int) -> None:
    """Refuse a benchmark whose longest prompt and response limit exceed the engine's window.

    Raises:
        ConfigError: with the sizes in tokens.
    """
    limit = resolve(settings.sampling, {}, benchmark.name).max_tokens
    longest = max(len(encode(tokenizer, problem, benchmark, settings.prompt)) for problem in benchmark.problems)
    if longest + limit > window:
        raise ConfigError(
            f"{BLOCK}.benchmarks: the longest prompt of {benchmark.name} has {longest} tokens, and with "
            f"{BLOCK}.sampling.max_tokens={limit} that exceeds the {window} of "
            "actor_rollout_ref.rollout.max_model_len: raise that, or lower the limit",
            f"{BLOCK}.sampling.max_tokens",
        )


def policy_settings(config: Any, urls: Sequence[str], served: str, tokenizer: str, step: int) -> Settings:
    """Settings of one evaluation: the policy behind its rollout engines.

    Args:
        config: the run's, with its block `evaluation`.
        urls: addresses of the rollout engines, such as http://10.0.0.1:40001/v1.
        served: the name under which they serve the policy.
        tokenizer: folder of the policy's tokenizer.
        step: whose weights the engines hold.
    """
    settings = _settings(config[BLOCK].arguments)
    policy = ModelSpec(POLICY, endpoints=tuple(urls), served=served, tokenizer=tokenizer)
    readings = settings.readings
    if config.actor_rollout_ref.rollout.name == TANDEM_ROLLOUT:
        policy = dataclasses.replace(policy, author="senior")
        if readings is not None and readings.model.path is not None:
            junior = dataclasses.replace(policy, name=JUNIOR, author="junior", weights=readings.model.path)
            readings = dataclasses.replace(readings, model=junior)
    return dataclasses.replace(
        settings,
        models=(policy,),
        readings=readings,
        output_dir=Path(config.trainer.default_local_dir) / BLOCK / f"step_{step}",
    )


def log_entries(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary as a trainer logs them: `evaluation/BENCHMARK/pass@1`, and what they are taken over.

    What is read with a partner has the reading's name before the number's, as in
    `evaluation/BENCHMARK/sentence_handoff/ratio/pass@1`; a value that nothing gives has no entry.
    """
    found: dict[str, float] = {}
    for model in summary["models"]:
        reading = "" if model == POLICY else "/" + model.removeprefix(f"{POLICY}+")
        for benchmark, result in summary["models"][model].items():
            name = f"{BLOCK}/{benchmark}{reading}"
            found |= _means(name, result)
            found |= {
                f"{name}/{key}": float(result[key])
                for key in ("counted_problems", "truncated", "mean_tokens")
                if result[key] is not None
            }
        for macro, result in summary["macros"].get(model, {}).items():
            found |= _means(f"{BLOCK}/macro/{macro}{reading}", result)
    return found


def _means(name: str, result: Mapping[str, Any]) -> dict[str, float]:
    found = {f"{name}/{metric}": interval["mean"] for metric, interval in result.get("metrics", {}).items()}
    named = {"ratio": "handoff_ratio", "gap": "handoff_gap", "legibility": "legibility"}
    for short, key in named.items():
        values = result.get(key, {})
        found |= {f"{name}/{short}/{number}": float(value) for number, value in values.items() if value is not None}
    return found


def _settings(arguments: Sequence[str]) -> Settings:
    try:
        return read_settings([f"models=[{POLICY}]", *arguments])
    except ConfigError as error:
        raise ConfigError(f"{BLOCK}: {error}", f"{BLOCK}.{error.key}" if error.key else "") from error
