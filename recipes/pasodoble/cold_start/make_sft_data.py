"""Make the supervised data from which Proposer and Solver start.

    OPENAI_API_KEY=... python -m recipes.pasodoble.cold_start.make_sft_data --output-dir outputs/pasodoble_sft

A generator model proposes problems from knowledge texts, a judge behind an OpenAI-compatible endpoint solves them, and
proposals whose answer the judge confirms become the Proposer's data; the generator's own solutions that agree with the
judge become the Solver's. Killed or stopped, the same command goes on where it was.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recipes.core.files import write_json
from recipes.core.journal import Journal
from recipes.core.sampling import Sampling
from recipes.errors import LaunchError
from recipes.pasodoble.cold_start.generators import ORIGINAL, EndpointGenerator, Generator, VllmGenerator
from recipes.pasodoble.cold_start.pipeline import ColdStart, ColdStartSettings, ColdStartStopped
from recipes.pasodoble.cold_start.records import write_dataset, write_dataset_info
from recipes.pasodoble.grading import GradingError, answers_agree
from recipes.pasodoble.knowledge import KnowledgeBase
from recipes.pasodoble.prompts import Prompts, require_chat_template
from recipes.pasodoble.settings import KnowledgeSettings
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError, OptionError

OPENAI = "https://api.openai.com/v1"


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Defaults are the original's where it has them."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.pasodoble.cold_start.make_sft_data",
        description=__doc__.split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--output-dir", type=Path, required=True, help="datasets, report and journal go here")
    add("--name", help="name of the datasets; without it src_<generator>_num_seq_<samples>")
    add("--records", "--train-set-size", type=int, default=2800, help="kept Proposer records wanted")
    add("--seed", type=int, default=42, help="chooses documents and samples")
    add("--no-solver", dest="solver", action="store_false", help="make the Proposer's dataset only")
    add("--prompts", type=Path, help="yaml file with texts that replace prompts, keys as in pasodoble.prompts")
    add(
        "--no-request-box",
        dest="request_box",
        action="store_false",
        help="do not ask for \\boxed{} in the Solver's prompt, as the original",
    )

    knowledge = parser.add_argument_group("knowledge").add_argument
    knowledge("--knowledge", default=KnowledgeSettings.path, help="parquet, json, jsonl, folder or dataset id")
    knowledge("--no-knowledge", action="store_true", help="prompt the Proposer without a text")
    knowledge("--knowledge-split", default=KnowledgeSettings.split)
    knowledge("--text-column", default=KnowledgeSettings.text_column)
    knowledge("--max-document-tokens", type=int, default=KnowledgeSettings.max_tokens, help="0 keeps all")

    generator = parser.add_argument_group("generator").add_argument
    generator("--generator-model", default="Qwen/Qwen3-14B")
    generator("--generator-base-url", help="OpenAI-compatible endpoint; without it vLLM runs in this process")
    generator("--generator-key-variable", default="OPENAI_API_KEY", help="environment variable with its key")
    generator("--tokenizer", help="counts document tokens; without it the generator model's")
    generator("--samples", type=int, default=ORIGINAL.n, help="completions of each prompt")
    generator("--temperature", type=float, default=ORIGINAL.temperature)
    generator("--top-p", type=float, default=ORIGINAL.top_p)
    generator("--max-tokens", type=int, default=ORIGINAL.max_tokens, help="of each completion")
    generator("--tensor-parallel-size", type=int, default=1, help="for vLLM in this process")
    generator("--gpu-memory-utilization", type=float, default=0.95, help="for vLLM in this process")
    generator("--max-model-len", type=int, default=6144, help="for vLLM in this process")

    judge = parser.add_argument_group("judge").add_argument
    judge("--judge-model", default="gpt-5-mini")
    judge("--judge-base-url", help="OpenAI-compatible endpoint; without it OpenAI's own")
    judge("--judge-key-variable", default="OPENAI_API_KEY", help="environment variable with its key")

    limits = parser.add_argument_group("time limits and retries").add_argument
    limits("--concurrency", type=int, default=16, help="requests under way per endpoint")
    limits("--documents-in-flight", type=int, default=ColdStartSettings.documents_in_flight)
    limits("--timeout", type=float, default=EndpointSettings.timeout, help="seconds for one request")
    limits("--max-tries", dest="attempts", type=int, default=8, help="of one request")
    limits("--first-wait", type=float, default=1.0, help="seconds, doubling with each try")
    limits("--max-wait", type=float, default=300.0, help="longest pause in seconds")
    limits("--max-failures", type=int, default=ColdStartSettings.max_failures, help="failed requests in a row")
    limits("--max-fruitless", type=int, default=ColdStartSettings.max_fruitless, help="documents without a record")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0: complete; 1: stopped, run it again; 2: refused, the sentence says what to change."""
    args = parse_arguments(argv)
    try:
        return asyncio.run(_run(args))
    except (ValueError, LaunchError, OptionError, FileNotFoundError) as error:
        print(f"make_sft_data: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"make_sft_data: {error}: pip install -e '.[gpu]' in the checkout, or [cpu]", file=sys.stderr)
    return 2


async def _run(args: argparse.Namespace) -> int:
    # everything that can be refused is refused before a model is loaded or a request is paid for
    settings = ColdStartSettings(**_named(args, *(field.name for field in fields(ColdStartSettings))))
    sampling = Sampling(args.samples, args.temperature, args.top_p, max_tokens=args.max_tokens)
    judge = Endpoint(_endpoint(args, args.judge_base_url, args.judge_model, args.judge_key_variable))
    served = args.generator_base_url and _endpoint(
        args, args.generator_base_url, args.generator_model, args.generator_key_variable
    )
    prompts, base = _prompts(args.prompts), _knowledge_base(args)
    name = args.name or f"src_{args.generator_model.rstrip('/').split('/')[-1]}_num_seq_{args.samples}"
    path = args.output_dir / f"{name}.journal.jsonl"
    with Journal(path, _fingerprint(args, sampling, base, prompts), sync="record") as journal:
        if served:
            generator: Generator = EndpointGenerator(served, sampling)
        else:
            options = _named(args, "tensor_parallel_size", "gpu_memory_utilization", "max_model_len")
            generator = VllmGenerator(args.generator_model, sampling, options)
        run = ColdStart(settings, journal, base, generator, judge, answers_agree, prompts, _progress_bars(settings))
        stopped: Exception | None = None
        try:
            await run.run()
        except (ColdStartStopped, EndpointError, GradingError) as error:
            stopped = error
        finally:
            await generator.close()
            await judge.close()
        report = run.report() | {"judge_requests": dict(judge.counts), "settings": asdict(settings)}
        _write(args.output_dir, name, run, report)
        print(json.dumps(report, indent=2))
        if report["complete"]:
            return 0
        reason = stopped or "some questions have no solutions yet, because requests failed"
        print(f"make_sft_data: not complete: {reason}; the same command goes on from here", file=sys.stderr)
        return 2 if isinstance(stopped, EndpointError) else 1


def _named(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names}


def _progress_bars(settings: ColdStartSettings) -> Callable[[str, int, int], None]:
    stages = ("proposer", "solver") if settings.solver else ("proposer",)
    bars = {stage: tqdm(desc=stage, position=place, unit="record") for place, stage in enumerate(stages)}

    def show(stage: str, done: int, total: int) -> None:
        bars[stage].total = total
        bars[stage].update(done - bars[stage].n)

    return show


def _write(folder: Path, name: str, run: ColdStart, report: dict[str, Any]) -> None:
    write_dataset(folder, name, run.proposer_records())
    names = [name]
    if run.settings.solver:
        names.append(f"solver_{name}")
        write_dataset(folder, names[-1], run.solver_records())
    write_dataset_info(folder, names)
    write_json(folder / f"{name}.report.json", report)


def _endpoint(args: argparse.Namespace, base_url: str | None, model: str, key_variable: str) -> EndpointSettings:
    limits = _named(args, "concurrency", "timeout", "attempts", "max_wait", "first_wait")
    settings = EndpointSettings(base_url or OPENAI, model, key_variable, **limits)
    settings.require_key()
    return settings


def _knowledge_base(args: argparse.Namespace) -> KnowledgeBase | None:
    limit = None if args.no_knowledge else args.max_document_tokens or None
    tokenizer = None
    if limit is not None or not args.generator_base_url:
        from transformers import AutoTokenizer

        tokenizer_name = args.tokenizer or args.generator_model
        try:
            tokenizer = AutoTokenizer.from_pretrained(tokenizer_name)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"no tokenizer could be loaded from {tokenizer_name!r}: name one with --tokenizer, or keep all "
                f"documents of an endpoint with --max-document-tokens 0 ({str(error).splitlines()[0]})"
            ) from error
    if not args.generator_base_url:
        require_chat_template(tokenizer)
    if args.no_knowledge:
        return None
    settings = KnowledgeSettings(args.knowledge, args.knowledge_split, args.text_column, limit, args.seed)
    return KnowledgeBase.from_settings(settings, tokenizer)


def _prompts(path: Path | None) -> Prompts:
    if path is None:
        return Prompts()
    import yaml

    try:
        texts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"--prompts: {path} cannot be read: {error}") from error
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"--prompts: {path} must map names of prompts to texts")
    return Prompts.from_config(texts)


def _fingerprint(
    args: argparse.Namespace, sampling: Sampling, base: KnowledgeBase | None, prompts: Prompts
) -> dict[str, Any]:
    """What recorded work depends on; endpoints may move and more records may be wanted."""
    return {
        "knowledge": base.fingerprint() if base else None,
        "seed": args.seed,
        "generator": args.generator_model,
        "sampling": {key: getattr(sampling, key) for key in ("n", "temperature", "top_p", "max_tokens")},
        "judge": args.judge_model,
        "request_box": args.request_box,
        "prompts": asdict(prompts),
    }


if __name__ == "__main__":
    sys.exit(main())
