"""The options of the commands that ask a model, and the engine and sampling that they describe."""

import argparse
import json

from recipes.core.files import model_digest
from recipes.core.sampling import EndpointEngine, Engine, Sampling
from reward_fns.endpoint import EndpointSettings

FOUR_LINE_BREAKS = "\n\n\n\n"


def add_arguments(
    parser: argparse.ArgumentParser, *, n: int, temperature: float, top_p: float, max_tokens: int = 2048
) -> None:
    """Add the options of every generating command, with this command's defaults."""
    model = parser.add_argument_group("model")
    model.add_argument("--model", required=True, help="path or id for vLLM, or the name the endpoint knows")
    model.add_argument("--endpoint", help="root of an OpenAI-compatible server; without it vLLM runs in this process")
    model.add_argument("--chat", action="store_true", help="endpoint: use chat completions")
    model.add_argument("--api-key-env", default="OPENAI_API_KEY", help="environment variable that holds the key")
    add_endpoint_arguments(model, timeout=600.0)
    model.add_argument("--engine", type=json.loads, default={}, help="vLLM: further arguments as a JSON object")
    model.add_argument("--batch", type=int, default=1024, help="vLLM: requests that it holds at a time")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--n", type=int, default=n, help=f"texts per prompt (default {n})")
    sampling.add_argument("--temperature", type=float, default=temperature, help=f"(default {temperature})")
    sampling.add_argument("--top-p", type=float, default=top_p, help=f"(default {top_p})")
    sampling.add_argument("--max-tokens", type=int, default=max_tokens, help=f"(default {max_tokens})")
    sampling.add_argument("--stop", nargs="*", default=[FOUR_LINE_BREAKS], help="texts that end a sample")
    sampling.add_argument("--seed", type=int, default=0)


def sampling_options(args: argparse.Namespace) -> dict:
    """Return what the records of a generating command depend on, for its journal."""
    names = ("model", "n", "temperature", "top_p", "max_tokens", "stop", "seed")
    return {name: getattr(args, name) for name in names} | {"weights": model_digest(args.model)}


def sampling_from(args: argparse.Namespace) -> Sampling:
    """Read the sampling that the options of `add_arguments` describe."""
    return Sampling(args.n, args.temperature, args.top_p, max_tokens=args.max_tokens, stop=tuple(args.stop))


def engine_from(args: argparse.Namespace) -> Engine:
    """Start the engine that the options of `add_arguments` describe."""
    if args.endpoint:
        return EndpointEngine(endpoint_settings(args, args.model, key_variable=args.api_key_env), chat=args.chat)
    from recipes.core.vllm_engine import VllmEngine

    print(f"loading {args.model} into vLLM", flush=True)
    options = {"enable_prefix_caching": True, "disable_log_stats": False} | args.engine
    return VllmEngine(args.model, options, window=args.batch)


def add_endpoint_arguments(group: argparse._ActionsContainer, *, timeout: float) -> None:
    """Add concurrency, time limit and attempts of requests to an endpoint."""
    group.add_argument("--concurrency", type=int, default=32, help="endpoint: requests in flight")
    group.add_argument("--timeout", type=float, default=timeout, help="endpoint: seconds for one attempt")
    group.add_argument("--attempts", type=int, default=4, help="endpoint: how often one request is sent at most")


def endpoint_settings(args: argparse.Namespace, model: str, *, key_variable: str | None) -> EndpointSettings:
    """Read the endpoint that the options of `add_endpoint_arguments` describe."""
    return EndpointSettings(
        args.endpoint, model, key_variable=key_variable, timeout=args.timeout, attempts=args.attempts,
        concurrency=args.concurrency, max_wait=20.0,
    )  # fmt: skip
