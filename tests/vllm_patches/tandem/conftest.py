"""Tiny model pairs, an independent reference decoder, and real vLLM engines to compare with it."""

import copy
import dataclasses
import json
import os
import random
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch

os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")  # read whenever a kernel is compiled; else float32 is tf32
VOCAB = 512
EOS = 1


@dataclasses.dataclass
class Job:
    """One request: prompt, number of tokens to generate, and its tandem settings."""

    prompt: list[int]
    num_tokens: int
    tandem: dict


@dataclasses.dataclass
class Written:
    """What a decoder wrote: token ids and the author of each."""

    token_ids: list[int]
    mask: list[int]


class Reference:
    """Tandem decoding without a cache: the writing model reads the whole text at every token, greedily.

    ``models[author]`` are the plain transformers models, ``boundaries`` the boundary sets.
    """

    def __init__(self, senior_path: Path, junior_path: Path):
        from transformers import AutoTokenizer, Qwen3ForCausalLM

        from vllm_patches.tandem.boundaries import boundary_sets

        self.models = {
            author: Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
            for author, path in ((1, senior_path), (0, junior_path))
        }
        self.boundaries = boundary_sets(AutoTokenizer.from_pretrained(senior_path), ("word", "sentence"))

    def params_of(self, tandem: dict, prompt: list[int], sampling_seed: int | None = None):
        from vllm_patches.tandem.config import TandemConfig, request_settings

        return request_settings(TandemConfig("unused"), tandem, prompt, sampling_seed).params

    def mask_of(self, token_ids, tandem: dict, prompt: list[int], sampling_seed: int | None = None) -> list[int]:
        from vllm_patches.tandem.schedule import authorship

        params = self.params_of(tandem, prompt, sampling_seed)
        return authorship(token_ids, params, self.boundaries.of(params.strategy.boundary))

    @torch.inference_mode()
    def log_probs(self, author: int, token_ids: list[int]) -> torch.Tensor:
        """(T - 1,) log-probability of each token after the first, by one model at temperature 1."""
        logits = self.models[author](torch.tensor([token_ids])).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]

    def next_token(self, author: int, text: list[int]) -> int:
        return int(self.models[author](torch.tensor([text])).logits[0, -1].argmax())

    @torch.inference_mode()
    def write(self, job: Job) -> Written:
        from vllm_patches.tandem.schedule import AuthorSchedule

        params = self.params_of(job.tandem, job.prompt)
        schedule = AuthorSchedule(params, self.boundaries.of(params.strategy.boundary))
        text, mask = list(job.prompt), []
        for _ in range(job.num_tokens):
            token = self.next_token(schedule.author, text)
            before = schedule.author
            if schedule.offer(token) != before:
                token = self.next_token(schedule.author, text)
            mask.append(schedule.author)
            text.append(token)
            schedule.advance(token)
        return Written(text[len(job.prompt) :], mask)

    @torch.inference_mode()
    def wrote(self, job: Job, found: Written) -> bool:
        """Whether ``found`` is ``write(job)``: every token is its writer's choice given the text before it.

        One pass per model over the whole text; only where that disagrees does the loop decide.
        """
        if job.tandem.get("word_align") == "before":
            return found == self.write(job)
        if found.mask != self.mask_of(found.token_ids, job.tandem, job.prompt):
            return False
        text, start = torch.tensor([job.prompt + found.token_ids]), len(job.prompt) - 1
        chosen = [self.models[author](text).logits[0, start:-1].argmax(-1).tolist() for author in (0, 1)]
        likely = [chosen[author][k] for k, author in enumerate(found.mask)] == found.token_ids
        return likely and len(found.token_ids) == job.num_tokens or found == self.write(job)

    def wrote_all(self, jobs: list[Job], found: list[Written]) -> bool:
        return all(self.wrote(job, one) for job, one in zip(jobs, found, strict=True))


def save_tokenizer(folder: Path, change: str = "", paragraph: str = "\n\n") -> None:
    """Every third token begins a word, every seventh ends in ``paragraph``."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "<eos>": EOS}
    for i in range(2, VOCAB):
        vocabulary[("Ġw" if i % 3 == 0 else "s") + str(i) + (paragraph if i % 7 == 0 else "") + change] = i
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>").save_pretrained(folder)


def save_model(folder: Path, seed: int, hidden: int, layers: int, kv_heads: int, spread: float) -> Path:
    """A random Qwen3, in single precision so that two implementations agree on every argmax."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=EOS,
        bos_token_id=EOS,
        initializer_range=spread,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_near(original: Path, folder: Path) -> Path:
    """A model with a little noise on the weights of another."""
    from transformers import Qwen3ForCausalLM

    noise = torch.Generator().manual_seed(5)
    model = Qwen3ForCausalLM.from_pretrained(original, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight += 0.015 * torch.randn(weight.shape, generator=noise)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """``senior``; ``junior`` and ``one_head`` of other shapes; ``sibling`` of the senior's shape with other weights;
    ``near`` the senior with a little noise; ``stranger`` with another vocabulary."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    paths = {
        "senior": save_model(root / "senior", 0, 128, 3, 2, 0.35),
        "junior": save_model(root / "junior", 1, 64, 2, 4, 0.45),
        "sibling": save_model(root / "sibling", 2, 128, 3, 2, 0.35),
        "stranger": save_model(root / "stranger", 3, 64, 2, 4, 0.45),
        "one_head": save_model(root / "one_head", 4, 96, 1, 1, 0.4),
    }
    paths["near"] = save_near(paths["senior"], root / "near")
    save_tokenizer(paths["stranger"], change="x")
    return paths


@pytest.fixture(scope="session")
def vocab() -> int:
    return VOCAB


@pytest.fixture(scope="session")
def make_job() -> type[Job]:
    return Job


@pytest.fixture(scope="session")
def models_without_paragraphs(models, tmp_path_factory) -> dict[str, Path]:
    """``senior`` and ``junior`` with a tokenizer in which no token ends in a blank line."""
    root = tmp_path_factory.mktemp("models_without_paragraphs")
    for name in ("senior", "junior"):
        shutil.copytree(models[name], root / name)
        save_tokenizer(root / name, paragraph="")
    return {name: root / name for name in ("senior", "junior")}


@pytest.fixture(scope="session")
def reference_with(models):
    """``reference_with(name)``: the cacheless loop with the junior of that name."""
    return cache(lambda name: Reference(models["senior"], models[name]))


@pytest.fixture(scope="session")
def reference(reference_with) -> Reference:
    return reference_with("junior")


@pytest.fixture(scope="session")
def jobs() -> list[Job]:
    """13 requests that mix prompt lengths, shared prefixes, strategies, caps and lengths."""
    dice = random.Random(1)
    shared = [dice.randrange(2, VOCAB) for _ in range(40)]
    strategies = ["word", "word", "word", "bernoulli", "chunk", "sentence", "senior", "junior", "alternating"]
    jobs = []
    for i in range(13):
        prompt = (shared if i % 3 == 0 else []) + [dice.randrange(2, VOCAB) for _ in range(dice.randrange(3, 120))]
        tandem = dict(
            selection_strategy=strategies[i % len(strategies)],
            seed=7,
            request=i,
            max_gap_tokens=8 + i % 25,
            chunk_size=7,
        )
        jobs.append(Job(prompt, dice.randrange(30, 110), tandem))
    return jobs


@pytest.fixture(scope="session")
def expected_with(reference_with, jobs):
    """``expected_with(name)``: what the cacheless loop writes with the junior of that name, written once."""
    return cache(lambda name: [reference_with(name).write(job) for job in jobs])


@pytest.fixture(scope="session")
def expected(expected_with) -> list[Written]:
    return expected_with("junior")


@pytest.fixture(scope="session")
def engine_in_process():
    """Engines in this process: quick to reach into."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        patch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
        # As in a toy's run; read at import, so for what torch compiles later.
        patch.setattr(torch._dynamo.config, "disable", True)
        yield


@pytest.fixture(scope="module")
def strategy_with_both_kinds_of_turn():
    """``both``: a coin at boundaries, and a handover at the cap, a redraw and a toggle in one strategy."""
    from vllm_patches.tandem import schedule

    schedule.register_strategy(
        "both",
        schedule.Strategy(
            start=1,
            redraws=lambda boundary, since, params: boundary & (since >= 2),
            toggles=lambda boundary, since, params: since >= params.chunk_size,
            boundary="word",
        ),
    )
    yield
    del schedule.STRATEGIES["both"]


@pytest.fixture(scope="session")
def chi_square():
    """``p(counts, expected)``: the chi-square test's p-value; 0 where something came that cannot be."""

    def p(counts, expected) -> float:
        counts, expected = (torch.as_tensor(values, dtype=torch.float64).ravel() for values in (counts, expected))
        possible = expected > 0
        if counts[~possible].any():
            return 0.0
        counts, expected = counts[possible], expected[possible]
        statistic = ((counts - expected) ** 2 / expected).sum()
        return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2, dtype=torch.float64), statistic / 2))

    return p


KV_CACHE = 1 << 26


class Engine:
    """A vLLM engine that decodes in tandem."""

    def __init__(self, senior: Path, tandem: dict, **arguments):
        from vllm import LLM

        import vllm_patches
        from vllm_patches.tandem.config import engine_arguments

        vllm_patches.register()
        options = dict(
            dtype="float32",
            enforce_eager=True,
            block_size=32,
            max_model_len=1024,
            max_num_seqs=16,
            max_num_batched_tokens=48,
            kv_cache_memory_bytes=KV_CACHE,
            disable_log_stats=True,
        )
        options |= engine_arguments(tandem) | arguments
        if torch.cuda.is_available():
            options.setdefault("gpu_memory_utilization", 0.02)  # others may hold memory of this GPU
            if options["dtype"] == "float32":  # which FlashAttention does not take
                options.setdefault("attention_backend", "TRITON_ATTN")
        self.llm = LLM(str(senior), **options)

    def run(self, jobs: list[Job], seed=None, **sampling) -> list[Written]:
        """``seed``: one for all requests, or a list of one each."""
        from vllm import SamplingParams

        seeds = seed if isinstance(seed, list) else [seed] * len(jobs)
        params = [
            SamplingParams(
                **(dict(temperature=0, max_tokens=job.num_tokens, ignore_eos=True) | sampling),
                seed=seed,
                extra_args={"tandem": job.tandem},
            )
            for job, seed in zip(jobs, seeds, strict=True)
        ]
        prompts = [{"prompt_token_ids": job.prompt} for job in jobs]
        self.outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [Written(list(o.outputs[0].token_ids), o.outputs[0].authorship_mask) for o in self.outputs]

    @property
    def runner(self):
        """The model runner itself; the engine lives in this process."""
        return self.llm.llm_engine.model_executor.driver_worker.worker.model_runner

    def stats(self) -> dict:
        return self.llm.collective_rpc("tandem_stats")[0]


OPEN: dict[str, Engine] = {}


@pytest.fixture(scope="session")
def open_engine(engine_in_process):
    """Opens engines side by side, each once; who asks for one that is open gets it with an empty prefix cache."""
    from vllm import envs

    def open_one(senior: Path, tandem: dict, **arguments) -> Engine:
        key = repr((senior, sorted(tandem.items()), sorted(arguments.items())))
        if key not in OPEN:
            OPEN[key] = Engine(senior, tandem, **arguments)
            envs.disable_envs_cache()  # an engine at work keeps the environment that it started with
        OPEN[key].llm.reset_prefix_cache()
        OPEN[key].stats()
        return OPEN[key]

    return open_one


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Close the engines before a test of another folder, which may need process groups of its own."""
    if OPEN and (nextitem is None or Path(__file__).parent not in nextitem.path.parents):
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        OPEN.clear()
        cleanup_dist_env_and_memory()


ADAPTED_MODULES = {"q_proj": "self_attn", "v_proj": "self_attn", "down_proj": "mlp"}


def save_adapter(folder, model, seed: int, rank: int = 4) -> None:
    """A random adapter of the attention and the feed-forward layers, in PEFT's format."""
    from safetensors.torch import save_file

    folder.mkdir()
    dice, tensors = torch.Generator().manual_seed(seed), {}
    for number, layer in enumerate(model.model.layers):
        for module, parent in ADAPTED_MODULES.items():
            out, into = getattr(getattr(layer, parent), module).weight.shape
            name = f"base_model.model.model.layers.{number}.{parent}.{module}"
            tensors[f"{name}.lora_A.weight"] = 0.3 * torch.randn(rank, into, generator=dice)
            tensors[f"{name}.lora_B.weight"] = 0.3 * torch.randn(out, rank, generator=dice)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = dict(
        r=rank, lora_alpha=rank, target_modules=list(ADAPTED_MODULES), peft_type="LORA", task_type="CAUSAL_LM"
    )
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"bias": "none", "use_dora": False}))


class Adapted:
    """A senior without adapter, with adapter ``one``, and with adapter ``two``."""

    names = (None, "one", "two")
    # vLLM's CPU kernels give rows without an adapter the last slot's: it must stay empty.
    engine_options = dict(enable_lora=True, max_loras=3, max_lora_rank=8)

    def __init__(self, folder: Path, senior: torch.nn.Module):
        self.folder = folder
        for seed, name in enumerate(self.names[1:], start=1):
            save_adapter(folder / name, senior, seed)

    def requests(self) -> list:
        from vllm.lora.request import LoRARequest

        return [None if n is None else LoRARequest(n, i, str(self.folder / n)) for i, n in enumerate(self.names)]

    def loop(self, reference: Reference, name: str | None) -> Reference:
        """The cacheless loop with this adapter merged into its senior."""
        from peft import PeftModel

        if name is None:
            return reference
        adapted = copy.copy(reference)
        model = PeftModel.from_pretrained(copy.deepcopy(reference.models[1]), self.folder / name)
        adapted.models = dict(reference.models) | {1: model.merge_and_unload()}
        return adapted

    def run(self, engine: Engine, jobs: list[Job], chosen: list[int]) -> list[Written]:
        """``chosen``: for each request the number of its adapter in ``names``."""
        from vllm import SamplingParams

        params = [
            SamplingParams(temperature=0, max_tokens=job.num_tokens, ignore_eos=True, extra_args={"tandem": job.tandem})
            for job in jobs
        ]
        requests = self.requests()
        outputs = engine.llm.generate(
            [{"prompt_token_ids": job.prompt} for job in jobs],
            params,
            lora_request=[requests[k] for k in chosen],
            use_tqdm=False,
        )
        return [Written(list(o.outputs[0].token_ids), o.outputs[0].authorship_mask) for o in outputs]


@pytest.fixture(scope="session")
def adapted(reference, tmp_path_factory) -> Adapted:
    pytest.importorskip("peft")
    return Adapted(tmp_path_factory.mktemp("adapters"), reference.models[1])
