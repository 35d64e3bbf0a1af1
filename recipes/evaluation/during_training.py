"""Evaluation of the policy while it trains: `evaluation.every=N evaluation.benchmarks=[math_500]` for any recipe.

Arguments that begin with `evaluation.` are those of `python -m recipes.evaluation.main`, without what training
decides: the policy's own rollout engines write the responses, with the weights of that step. Prompts, seeds, grading
and statistics are those of the command, so that it gives the same numbers on the weights that were saved.
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.core.sampling import EndpointEngine
from recipes.errors import ConfigError, EnvironmentProblem
from recipes.evaluation.benchmarks import Benchmark
from recipes.evaluation.main import evaluate, load_benchmarks
from recipes.evaluation.prompts import encode
from recipes.evaluation.settings import ModelSpec, Settings, read_settings, resolve
from reward_fns.endpoint import EndpointSettings

BLOCK = "evaluation"
POLICY = "policy"
DECIDED_BY_TRAINING = ("models", "engine", "score_only", "output_dir")
TANDEM_ROLLOUT = "tandem_vllm"
JUNIOR = "junior"
# The junior reads them on the driver's processor.
LEGIBILITY_RESPONSES = 64


def split(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides of the evaluation, without their prefix, and the others."""
    own = [item for item in overrides if item.lstrip("+~").startswith(f"{BLOCK}.")]
    return [item.replace(f"{BLOCK}.", "", 1) for item in own], [item for item in overrides if item not in own]


def read_block(
    arguments: Sequence[str], max_tokens: int, junior: str | None = None, thinking: bool | None = None
) -> dict[str, Any]:
    """The block `evaluation` of a run's config: how often, and the arguments of the evaluation.

    Args:
        arguments: overrides without their prefix; `every` is the number of steps between evaluations.
        max_tokens: response limit where the arguments set none.
        junior: value of `partner.model` where readings are asked for without one.
        thinking: whether the run's prompts ask for thoughts; None leaves it to the template.

    Raises:
        ConfigError: no or a bad `every`, what training decides, or what the evaluation itself refuses.
    """
    every = [item.partition("=")[2] for item in arguments if item.partition("=")[0] == "every"]
    others = [item for item in arguments if item.partition("=")[0] != "every"]
    keys = {item.lstrip("+~").partition("=")[0] for item in others}
    if not every or not every[-1].isdecimal() or int(every[-1]) < 1:
        raise ConfigError(
            f"{BLOCK}.every: expected a number of steps from 1, found {every[-1] if every else 'none'}; "
            f"evaluation during training needs {BLOCK}.every=N {BLOCK}.benchmarks=[...]",
            f"{BLOCK}.every",
        )
    for root in {key.partition(".")[0] for key in keys}.intersection(DECIDED_BY_TRAINING):
        raise ConfigError(
            f"{BLOCK}.{root} has no place in training: the policy's rollout engines write the responses, and the "
            "run's folder of checkpoints gets the results",
            f"{BLOCK}.{root}",
        )
    if "partner.readings" in keys and "partner.model" not in keys:
        if junior is None:
            raise ConfigError(
                f"{BLOCK}.partner.readings needs a partner, and this run has no junior: give "
                f"'{BLOCK}.partner.model={{endpoint: http://host:port/v1, model: NAME, tokenizer: PATH}}'",
                f"{BLOCK}.partner.model",
            )
        others.append(f"partner.model={junior}")
        if "partner.legibility_responses" not in keys:
            others.append(f"partner.legibility_responses={LEGIBILITY_RESPONSES}")
    elif (partner := _settings(others).partner.model) is not None and not partner.endpoints:
        raise ConfigError(
            f"{BLOCK}.partner.model={partner.path} would have to be loaded beside the rollout engines; give "
            f"'{{endpoint: http://host:port/v1, model: NAME, tokenizer: PATH}}', or nothing where the engines hold it",
            f"{BLOCK}.partner.model",
        )
    if thinking is not None and "prompt.thinking" not in keys:
        others.append(f"prompt.thinking={str(bool(thinking)).lower()}")
    if _settings(others).sampling.max_tokens is None:
        others.append(f"sampling.max_tokens={max_tokens}")
    target = f"{PolicyEvaluation.__module__}.{PolicyEvaluation.__name__}"
    return {"_target_": target, "every": int(every[-1]), "arguments": others}


def _settings(arguments: Sequence[str]) -> Settings:
    try:
        return read_settings([f"models=[{POLICY}]", *arguments])
    except ConfigError as error:
        raise ConfigError(f"{BLOCK}: {error}", f"{BLOCK}.{error.key}" if error.key else "") from error


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
    from transformers import AutoTokenizer

    from recipes.core import compat

    thinking = (config.data.get("apply_chat_template_kwargs") or {}).get("enable_thinking")
    with open_dict(config):
        config[BLOCK] = read_block(arguments, config.data.max_response_length, junior_of(config), thinking)
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    lora = model.get("lora") or {}
    adapter = (lora.get("rank") or model.get("lora_rank") or 0) > 0 and not lora.get("merge")
    refusals = [
        ("rollout.name", rollout.name not in ("vllm", TANDEM_ROLLOUT), "needs vLLM's rollout engine"),
        ("model.lora.merge", adapter, "would ask the engine's base model, without the adapter that is not merged"),
        ("model.custom_chat_template", model.get("custom_chat_template"), "takes the chat template of the tokenizer"),
    ]
    for key, refused, why in refusals:
        if refused:
            key = f"actor_rollout_ref.{key}"
            raise ConfigError(f"{BLOCK}.every {why}: change {key}, or evaluate the checkpoints", key)
    settings = _settings(config[BLOCK].arguments)
    tokenizer = AutoTokenizer.from_pretrained(
        model.get("tokenizer_path") or model.path, trust_remote_code=bool(model.get("trust_remote_code"))
    )
    window = rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
    for benchmark in load_benchmarks(settings):
        require_fit(benchmark, tokenizer, settings, window)
    compat.require("recipes/evaluation/during_training.py")


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
    entry = {
        "name": JUNIOR,
        "endpoint": portable.junior_url,
        "model": portable.junior_name,
        "tokenizer": model.get("tokenizer_path") or model.path,
    }
    return "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in entry.items()) + "}"


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
    partner = settings.partner
    if config.actor_rollout_ref.rollout.name == TANDEM_ROLLOUT:
        policy = dataclasses.replace(policy, author="senior")
        if partner.model is not None and partner.model.path is not None:
            junior = dataclasses.replace(policy, name=JUNIOR, author="junior", weights=partner.model.path)
            partner = dataclasses.replace(partner, model=junior)
    folder = Path(config.trainer.default_local_dir) / BLOCK / f"step_{step}"
    return dataclasses.replace(settings, models=(policy,), partner=partner, output_dir=folder)


def log_entries(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary as a trainer logs them: `evaluation/BENCHMARK/pass@1`, and what they are taken over.

    What is read with a partner has the reading's name before the number's, as in
    `evaluation/BENCHMARK/sentence_handoff/ratio/pass@1`; a value that nothing gives has no entry.
    """
    entries: dict[str, float] = {}
    for model in summary["models"]:
        reading = "" if model == POLICY else "/" + model.removeprefix(f"{POLICY}+")
        for benchmark, result in summary["models"][model].items():
            name = f"{BLOCK}/{benchmark}{reading}"
            counts = {key: result[key] for key in ("counted_problems", "truncated", "mean_tokens")}
            entries |= _means(name, result) | _numbers(name, counts)
        for macro, result in summary["macros"].get(model, {}).items():
            entries |= _means(f"{BLOCK}/macro/{macro}{reading}", result)
    return entries


def _means(name: str, result: Mapping[str, Any]) -> dict[str, float]:
    entries = {f"{name}/{metric}": interval["mean"] for metric, interval in result.get("metrics", {}).items()}
    for short, key in {"ratio": "handoff_ratio", "gap": "handoff_gap", "legibility": "legibility"}.items():
        entries |= _numbers(f"{name}/{short}", result.get(key, {}))
    return entries


def _numbers(prefix: str, values: Mapping[str, float | None]) -> dict[str, float]:
    return {f"{prefix}/{key}": float(value) for key, value in values.items() if value is not None}


class PolicyEvaluation:
    """Evaluates a trainer's policy before the first step, after each `every` steps, and after the last.

    A trainer makes one where its config has the block. A run that is asked to end early does not begin an evaluation
    for that.
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
