"""What the rules let through, the workers can serve; all else is a ValueError with a sentence."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.input_processor import InputProcessor

from vllm_patches.tandem import frontend
from vllm_patches.tandem.config import CONFIG_KEY, WORKER, check_models
from vllm_patches.tandem.engine_checks import TandemRefusedError
from vllm_patches.tandem.request_rules import RequestRules, check_responses
from vllm_patches.tandem.request_states import RequestStates

sys.path.insert(0, str(Path(__file__).parent))
from random_requests import random_settings  # noqa: E402


def rules(paths, **tandem) -> RequestRules:
    settings = dict(junior_model=str(paths["junior"])) | tandem
    senior = str(paths["senior"])
    model = SimpleNamespace(model=senior, tokenizer=senior, max_model_len=64, get_vocab_size=lambda: 512)
    return RequestRules(engine(settings, model_config=model))


def engine(settings: dict, worker_cls=WORKER, **parts) -> SimpleNamespace:
    parallel = SimpleNamespace(worker_cls=worker_cls)
    return SimpleNamespace(
        additional_config={CONFIG_KEY: settings}, lora_config=None, parallel_config=parallel, **parts
    )


def request(extra, prompt=(5, 6, 7), seed=None, structured=False, resumable=False, **ids):
    params = SimpleNamespace(
        extra_args=None if extra is None else {CONFIG_KEY: extra},
        seed=seed,
        structured_outputs=object() if structured else None,
        **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "logit_bias")) | ids,
    )
    return SimpleNamespace(sampling_params=params, prompt_token_ids=list(prompt), resumable=resumable)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (dict(chunk_size=10**21), "chunk_size is 1000000000000000000000; expected a whole number of tokens from 1 to"),
        (dict(max_gap_tokens=2**31), "max_gap_tokens is 2147483648"),
        (dict(seed=2**64), "seed is .*at most 64 bits"),
        (dict(request=-(2**63) - 1), "request is .*at most 64 bits"),
        (dict(selection_strategy=["word"]), r"selection_strategy is \['word'\]"),
        ("[" * 100_000, "not JSON"),
        ('{"seed": ' + "9" * 5_000 + "}", "not JSON"),
        (dict(resume_len=4), "resume_len is 4, more than the 3 tokens"),
        (dict(word_align="before"), "lock_step"),
    ],
)
def test_a_request_that_no_worker_could_serve_is_refused(models, extra, says):
    with pytest.raises(ValueError, match=says):
        rules(models).check(request(extra))


@pytest.mark.parametrize(("seed", "n", "refused"), [(-2, 2, True), (-3, 3, True), (-3, 2, False), (-5, 3, False)])
def test_no_response_of_several_may_have_the_seed_that_vllm_takes_for_none(seed, n, refused):
    """Between processes it would become None, and the response's coins others than the client computes."""
    import msgspec

    params = SamplingParams(seed=seed, n=n)
    children = [msgspec.structs.replace(params, seed=seed + i, n=1) for i in range(n)]
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=SamplingParams) for one in children]
    assert (None in [one.seed for one in sent]) == refused
    if refused:
        with pytest.raises(ValueError, match=f"seed is {seed} and n is {n}"):
            check_responses(params)
    else:
        check_responses(params)


def test_a_prompt_beyond_the_juniors_vocabulary_is_refused(tmp_path, models):
    """The senior's embedding may have more rows, and vLLM compares with those alone."""
    settings = json.loads((models["junior"] / "config.json").read_text()) | {"vocab_size": 448}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    one = rules(models | {"junior": tmp_path})
    one.check(request(None, prompt=(5, 447)))
    with pytest.raises(ValueError, match="token id 500, and the junior's vocabulary ends at 447"):
        one.check(request(None, prompt=(5, 500)))
    rules(models).check(request(None, prompt=(5, 500)))


@pytest.mark.parametrize("worker", ["vllm.v1.worker.cpu_worker.CPUWorker", "auto"])
def test_another_worker_is_refused(models, worker):
    """It would answer with the senior alone, and no mask."""
    settings = dict(junior_model=str(models["junior"]))
    with pytest.raises(TandemRefusedError, match=f"worker_cls is .*{worker.rpartition('.')[2]}"):
        RequestRules(engine(settings, worker))


def test_a_worker_derived_from_ours_passes(models):
    from vllm_patches.tandem.worker import TandemWorker

    class Derived(TandemWorker):
        pass

    RequestRules(engine(dict(junior_model=str(models["junior"])), Derived, model_config=None))


def test_a_strategy_without_boundaries_is_refused(models, models_without_paragraphs):
    sentence = dict(selection_strategy="sentence")
    with pytest.raises(ValueError, match="'sentence' reads sentence boundaries, and no token of this engine's token"):
        rules(models_without_paragraphs).check(request(sentence))
    assert rules(models).check(request(sentence)).params.selection_strategy == "sentence"
    by_hand = rules(models_without_paragraphs, selection_strategy="sentence", boundary_token_ids=[7])
    assert by_hand.check(request(None)).params.selection_strategy == "sentence"
    assert by_hand.check(request(dict(selection_strategy="word"))).params.selection_strategy == "word"


def test_streaming_input_embeddings_and_pooling_are_refused(models):
    with pytest.raises(ValueError, match="no streaming input"):
        rules(models).check(request(None, resumable=True))
    for missing in (dict(prompt_token_ids=None), dict(sampling_params=None)):
        with pytest.raises(ValueError, match="takes token ids and sampling parameters"):
            rules(models).check(SimpleNamespace(**(vars(request(None)) | missing)))


def test_several_responses_with_the_same_coins_are_refused_before_vllm_splits_them(models):
    params = SamplingParams(n=2, extra_args={CONFIG_KEY: {}})
    several = SimpleNamespace(sampling_params=params, prompt_token_ids=[5, 6, 7], resumable=False)
    with pytest.raises(ValueError, match="n is 2, and all responses would draw the same author coins"):
        rules(models).check(several, from_client=True)
    params.seed = 4
    rules(models).check(several, from_client=True)


def test_the_front_end_answers_as_vllm_answers_its_own_faulty_requests(models, monkeypatch):
    params = SamplingParams(extra_args={CONFIG_KEY: dict(resume_len=9)})
    faulty = SimpleNamespace(sampling_params=params, prompt_token_ids=[5, 6, 7], resumable=False)
    monkeypatch.setattr(InputProcessor, "process_inputs", lambda processor: faulty)
    frontend.check_requests()
    one = rules(models)
    processor = SimpleNamespace(vllm_config=SimpleNamespace(additional_config={CONFIG_KEY: {}}), tandem_rules=one)
    with pytest.raises(VLLMValidationError, match="resume_len is 9"):
        InputProcessor.process_inputs(processor)
    params.extra_args[CONFIG_KEY]["resume_len"] = 1
    assert InputProcessor.process_inputs(processor) is faulty
    processor.vllm_config.additional_config = {}
    params.extra_args[CONFIG_KEY]["resume_len"] = 9
    assert InputProcessor.process_inputs(processor) is faulty, "other engines' requests are not looked at"


@pytest.mark.parametrize("mode", ["lazy", "lock_step"])
@pytest.mark.parametrize("paragraphs", [True, False])
def test_ten_thousand_random_requests_are_refused_with_a_sentence_or_run(
    models, models_without_paragraphs, mode, paragraphs
):
    paths = models if paragraphs else models_without_paragraphs
    one = rules(paths, mode=mode)
    states = RequestStates(check_models(one.config, str(paths["senior"])), 512)
    dice = random.Random(f"{mode} {paragraphs}")
    counts = {"refused": 0, "run": 0}
    for number in range(2500):
        prompt = [dice.randrange(512) for _ in range(dice.randrange(1, 60))]
        extra = random_settings(dice)
        try:
            settings = one.check(
                request(extra, prompt, dice.choice([None, 0, 2**63]), dice.random() < 0.1, dice.random() < 0.01)
            )
        except ValueError as refusal:
            assert len(str(refusal)) > 20
            counts["refused"] += 1
            continue
        states.add(str(number), settings, prompt, 0)
        rows = states.rows([str(number)])
        for _ in range(5):
            token = np.array([dice.randrange(512)])
            states.schedules.offer(rows, token)
            states.schedules.advance(rows, token)
            assert states.schedules.author[rows[0]] in (0, 1)
        states.remove(str(number))
        counts["run"] += 1
    assert min(counts.values()) > 500


@pytest.mark.parametrize(
    "ids",
    [dict(prompt=(5, 512)), dict(stop_token_ids=[7, 512]), dict(allowed_token_ids=[600]), dict(logit_bias={512: 1.0})],
    ids=lambda ids: next(iter(ids)),
)
def test_an_id_beyond_the_vocabulary_is_refused_wherever_it_stands(models, ids):
    """It has no row in the embedding or the logits, and would end the engine for every client."""
    with pytest.raises(ValueError, match=r"holds token id (512|600), and the (senior|junior)'s vocabulary ends at 511"):
        rules(models).check(request(None, **ids))


def test_a_section_in_other_letters_is_no_silent_default(models):
    wrong = request(None)
    wrong.sampling_params.extra_args = {"Tandem": {"prob_senior": 0.9}}
    with pytest.raises(ValueError, match="'Tandem', and the settings of a request stand under 'tandem'"):
        rules(models).check(wrong)
