"""vLLM in this process: every request at once, each problem handed over as soon as it is finished."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipes.errors import EnvironmentProblem
from recipes.evaluation.handoff import Part, Turn
from recipes.evaluation.sample_store import Sample
from recipes.evaluation.sampling import OnDone, Request, Sampling

DEFAULT_MEMORY_SHARE = 0.9


def memory_part(options: Mapping[str, Any], part: float) -> dict[str, Any]:
    """Options of one of several engines on the same device: its part of the memory that all of them may take.

    vLLM refuses to start when less than `gpu_memory_utilization` of the device is free; two engines with the share
    meant for one cannot both start.
    """
    whole = options.get("gpu_memory_utilization", DEFAULT_MEMORY_SHARE)
    return {**options, "gpu_memory_utilization": round(whole * part, 4)}


class VllmEngine:
    """A model in vLLM's offline engine."""

    def __init__(self, model: str, options: Mapping[str, Any]):
        """Load a model; `options` are those of `vllm.LLM`."""
        from vllm import LLM
        from vllm.platforms import current_platform

        options = dict(options)
        if current_platform.is_cpu():
            # A seeded request whose prompt is split kills the engine: it rewinds a generator, which the CPU's refuses.
            options.setdefault("enable_chunked_prefill", False)
        try:
            self._llm = LLM(model=model, **options)
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            raise EnvironmentProblem(f"vLLM cannot load {model} with {options}: {error}") from error
        self.tokenizer = self._llm.get_tokenizer()
        self.model_length: int = self._llm.llm_engine.model_config.max_model_len

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; `on_done` is called in the order in which problems finish."""
        for problem, samples in self.stream(requests, sampling):
            on_done(problem, samples)

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[str, list[Sample]]]:
        """The n responses to every request, in the order in which problems finish.

        vLLM's own loop over its engine would return only when all are finished, and a killed run would lose them.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        engine = self._llm.llm_engine
        problems = {}
        for number, request in enumerate(requests):
            parameters = SamplingParams(
                n=sampling.n,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_tokens,
                stop=list(sampling.stop),
                seed=request.seed if sampling.temperature > 0 else None,
                output_kind=RequestOutputKind.FINAL_ONLY,
                extra_args=self.extra_arguments(request),
            )
            problems[str(number)] = request.problem
            engine.add_request(str(number), {"prompt_token_ids": request.token_ids}, parameters)
        try:
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        problem = problems[output.request_id]
                        yield problem, self.samples(problem, output)
        except EngineDeadError as error:
            raise EnvironmentProblem(
                "vLLM's engine exited unexpectedly, its own messages above say why; finished problems are kept, "
                "run again to continue"
            ) from error

    def extra_arguments(self, request: Request) -> dict[str, Any] | None:
        """What an engine of another kind has to know of a request."""
        return None

    def samples(self, problem: str, output: Any) -> list[Sample]:
        """The responses to a problem, in the order of their indices."""
        return [
            Sample(
                problem=problem,
                sample=number,
                response=completion.text,
                tokens=len(completion.token_ids),
                finish_reason=str(completion.finish_reason),
                prompt_tokens=len(output.prompt_token_ids),
            )
            for number, completion in enumerate(sorted(output.outputs, key=lambda completion: completion.index))
        ]

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends.

        That token belongs to the part whole, whatever text it carries after the separator: what the other model reads
            are tokens.
        """
        from vllm import SamplingParams

        stops = [separator, *sampling.stop]
        parameters = [
            SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=turn.most,
                stop=stops,
                include_stop_str_in_output=True,
                seed=turn.seed if sampling.temperature > 0 else None,
            )
            for turn in turns
        ]
        prompts = [{"prompt_token_ids": turn.token_ids} for turn in turns]
        outputs = [output.outputs[0] for output in self._llm.generate(prompts, parameters, use_tqdm=False)]
        return [
            Part(list(out.token_ids), out.finish_reason == "stop" and out.stop_reason != separator) for out in outputs
        ]

    def prompt_log_probs(self, token_ids: Sequence[Sequence[int]]) -> list[list[object]]:
        """What `legibility.response_log_probs` reads: for each sequence, the log-probability of every token of it."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        prompts = [{"prompt_token_ids": list(ids)} for ids in token_ids]
        return [output.prompt_logprobs for output in self._llm.generate(prompts, parameters, use_tqdm=False)]
