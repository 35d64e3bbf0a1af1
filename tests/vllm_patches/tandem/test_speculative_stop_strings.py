"""Where a stop string ends a response does not depend on how many tokens a round emits."""

import dataclasses

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.outputs import LogprobsLists

from vllm_patches.tandem.frontend import encode_authorship
from vllm_patches.tandem.outputs import AUTHORSHIP_KEY
from vllm_patches.tandem.speculative.scheduler import one_per_token

NUM_TOKENS = 40
OPTIONS = dict(max_model_len=320)


@pytest.fixture(scope="module")
def eight(jobs):
    return [dataclasses.replace(job, num_tokens=NUM_TOKENS) for job in jobs[:8]]


@pytest.fixture(scope="module")
def stops(models, eight, expected_with):
    """For each request six characters of its text, the first of which may lie within a token."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models["senior"])
    texts = [tokenizer.decode(one.token_ids[:NUM_TOKENS]) for one in expected_with("near")[: len(eight)]]
    return [text[at : at + 6] for i, text in enumerate(texts) for at in [len(text) // 2 + 3 * i]]


def params_of(jobs, stops, **more) -> list[SamplingParams]:
    """Every second request keeps its stop string, every third has a least length behind its first match."""
    return [
        SamplingParams(
            max_tokens=job.num_tokens,
            ignore_eos=True,
            stop=[stop, "no text has this"],
            include_stop_str_in_output=i % 2 == 0,
            min_tokens=30 * (i % 3 == 2),
            extra_args={"tandem": job.tandem},
            **(dict(temperature=0) | more),
        )
        for i, (job, stop) in enumerate(zip(jobs, stops, strict=True))
    ]


def seen(output) -> dict:
    """What a client reads of a response, but for log-probs' values."""
    one = output.outputs[0]
    assert len(one.authorship_mask) == len(one.token_ids) == len(one.logprobs)
    assert output.kv_transfer_params == {AUTHORSHIP_KEY: one.authorship_mask}
    assert one.cumulative_logprob == pytest.approx(
        sum(at[token].logprob for at, token in zip(one.logprobs, one.token_ids, strict=True))
    )
    return dict(
        token_ids=list(one.token_ids),
        mask=one.authorship_mask,
        text=one.text,
        reasons=(one.finish_reason, one.stop_reason),
        prompt_log_probs=len(output.prompt_logprobs),
        finished=output.finished,
    )


def streamed(core, jobs, stops) -> list[tuple[list[int], str]]:
    """Token ids and text of each request's deltas."""
    for i, (job, params) in enumerate(
        zip(jobs, params_of(jobs, stops, output_kind=RequestOutputKind.DELTA), strict=True)
    ):
        core.add_request(f"stream-{i}", {"prompt_token_ids": job.prompt}, params)
    deltas = [([], []) for _ in jobs]
    while core.has_unfinished_requests():
        for output in core.step():
            ids, texts = deltas[int(output.request_id.split("-")[1])]
            ids.extend(output.outputs[0].token_ids)
            texts.append(output.outputs[0].text)
    return [(ids, "".join(texts)) for ids, texts in deltas]


def log_probs(output) -> list[float]:
    one = output.outputs[0]
    return [at[token].logprob for at, token in zip(one.logprobs, one.token_ids, strict=True)]


def several(llm, jobs) -> list[tuple]:
    """Two sampled responses to each request, that end at strings many tokens have."""
    params = params_of(jobs, ["w3"] * len(jobs), temperature=1.0, seed=3, n=2)
    for one in params:
        one.extra_args = None
    outputs = llm.generate([{"prompt_token_ids": job.prompt} for job in jobs], params, use_tqdm=False)
    return [(list(one.token_ids), one.authorship_mask, one.text, one.stop_reason) for o in outputs for one in o.outputs]


@pytest.fixture(scope="module")
def found(open_engine, models, eight, stops) -> list[dict]:
    """What clients of the lazy mode see, and of the speculative one with one draft and with eight."""
    found, prompts = [], [{"prompt_token_ids": job.prompt} for job in eight]
    drafting = dict(mode="speculative", adapt_draft_tokens=False)
    for settings in (dict(mode="lazy"), drafting | dict(num_draft_tokens=1), drafting | dict(num_draft_tokens=8)):
        engine = open_engine(models["senior"], dict(junior_model=str(models["near"])) | settings, **OPTIONS)
        params = params_of(eight, stops, logprobs=1, prompt_logprobs=0)
        outputs = engine.llm.generate(prompts, params, use_tqdm=False)
        found.append(
            dict(
                whole=[seen(output) for output in outputs],
                log_probs=[log_probs(output) for output in outputs],
                streams=streamed(engine.llm.llm_engine, eight, stops),
                several=several(engine.llm, eight[:4]),
                without_stop=engine.run(eight[:1])[0].token_ids,
            )
        )
    return found


def test_a_response_ends_with_the_token_that_completes_the_string(found, stops, expected_with):
    lazy, one_draft, eight_drafts = (one["whole"] for one in found)
    assert lazy == one_draft == eight_drafts
    assert sum(one["reasons"][0] == "stop" for one in lazy) > 4
    assert any(one["text"].endswith(stop) for one, stop in zip(lazy, stops, strict=True))
    for one, whole in zip(lazy, expected_with("near"), strict=False):
        end = len(one["token_ids"])
        assert (one["token_ids"], one["mask"]) == (whole.token_ids[:end], whole.mask[:end])
    for one in found:
        assert one["without_stop"] == expected_with("near")[0].token_ids[:NUM_TOKENS]
        for ours, theirs in zip(found[0]["log_probs"], one["log_probs"], strict=True):
            assert ours == pytest.approx(theirs, abs=2e-3)


def test_the_deltas_of_a_stream_join_to_the_same(found):
    lazy, one_draft, eight_drafts = (one["streams"] for one in found)
    assert lazy == one_draft == eight_drafts == [(one["token_ids"], one["text"]) for one in found[0]["whole"]]


def test_several_responses_are_the_same_for_each_number_of_drafts(found):
    one_draft, eight_drafts = (one["several"] for one in found[1:])
    assert one_draft == eight_drafts
    assert all(len(ids) == len(mask) for ids, mask, _, _ in one_draft)
    assert sum(reason == "w3" for *_, reason in one_draft) > 4


def test_what_belongs_to_a_step_or_to_the_end_is_sent_once():
    log_probs = LogprobsLists(np.arange(6).reshape(3, 2), -np.arange(6.0).reshape(3, 2), np.arange(3))
    end = dict(finish_reason=FinishReason.LENGTH, stop_reason=3)
    # Any part may be the last for the front end, and has the response's mask up to it.
    mask = {AUTHORSHIP_KEY: [0, 1, 0, 1]}
    start = dict(events=["scheduled"], new_prompt_logprobs_tensors="of the prompt")
    whole = EngineCoreOutput(
        "a",
        [5, 6, 7],
        new_logprobs=log_probs,
        routed_experts=encode_authorship([1, 0, 1]),
        kv_transfer_params=mask,
        **start,
        **end,
    )
    parts = one_per_token(whole)
    assert [one.new_token_ids for one in parts] == [[5], [6], [7]]
    assert [one.routed_experts.ravel().tolist() for one in parts] == [[True], [False], [True]]
    for field, joined in zip(log_probs[:3], zip(*(one.new_logprobs[:3] for one in parts), strict=True), strict=False):
        assert np.array_equal(np.concatenate(joined), field)
    assert [{name: getattr(one, name) for name in end} for one in parts] == [dict.fromkeys(end)] * 2 + [end]
    assert [{name: getattr(one, name) for name in start} for one in parts] == [start] + [dict.fromkeys(start)] * 2
    assert [one.kv_transfer_params[AUTHORSHIP_KEY] for one in parts] == [[0, 1], [0, 1, 0], [0, 1, 0, 1]]
    assert one_per_token(parts[0]) == [parts[0]]
