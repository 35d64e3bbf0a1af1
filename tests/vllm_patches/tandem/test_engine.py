"""One engine per mode, many requests: it writes what the reference writes, token for token and author for author."""

import copy
import dataclasses
from types import MethodType, SimpleNamespace

import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from vllm_patches.tandem.outputs import AUTHORSHIP_KEY

# 0.28 wraps what a plug-in raises in an error of its own that is no ValueError; 0.26 does not.
REFUSALS = (ValueError, VLLMValidationError)


@pytest.fixture(scope="module", params=["lock_step", "lazy"])
def engine(request, models, open_engine):
    return open_engine(models["senior"], dict(junior_model=str(models["junior"]), mode=request.param))


@pytest.fixture(scope="module", params=["lock_step", "lazy", "speculative"])
def any_mode(request, models, open_engine, reference_with, expected_with):
    """An engine of each mode, the loop that it must equal, and what that writes; ``near`` agrees with most drafts."""
    junior = "near" if request.param == "speculative" else "junior"
    engine = open_engine(models["senior"], dict(junior_model=str(models[junior]), mode=request.param))
    return SimpleNamespace(engine=engine, reference=reference_with(junior), expected=expected_with(junior))


@pytest.fixture(scope="module")
def second_turns(jobs, expected):
    """Prompt, response and five more tokens of each of eight requests, as the prompts of a second turn."""
    turns = []
    for i, (job, written) in enumerate(zip(jobs[:8], expected, strict=False)):
        tandem = dict(selection_strategy="word", request=500 + i, max_gap_tokens=11)
        turns.append(dataclasses.replace(job, prompt=job.prompt + written.token_ids + [9, 3, 30, 4, 5], tandem=tandem))
        turns[-1].num_tokens = 40
    return turns


@pytest.fixture(scope="module")
def expected_second(reference, second_turns):
    return [reference.write(turn) for turn in second_turns]


def test_cold_and_warm_cache_with_prompts_in_chunks(engine, jobs, expected):
    engine.llm.reset_prefix_cache()
    assert engine.run(jobs) == expected
    switches = sum(a != b for written in expected for a, b in zip(written.mask, written.mask[1:], strict=False))
    assert switches > 100
    engine.stats()
    assert engine.run(jobs) == expected
    assert engine.stats()["cached_tokens"] > 500


def test_a_second_turn_reads_the_blocks_the_first_turn_wrote(engine, jobs, expected, second_turns, expected_second):
    engine.llm.reset_prefix_cache()
    engine.run(jobs)
    engine.stats()
    assert engine.run(second_turns) == expected_second
    assert engine.stats()["cached_tokens"] > sum(len(job.prompt) for job in jobs[:8])


@pytest.fixture
def cached_as_in_stock_vllm(engine):
    """Full blocks enter the prefix cache when they are allotted, whoever has written them: invariant I3 dropped."""
    if engine.runner.tandem_mode != "lazy":
        pytest.skip("only the lazy mode holds blocks back")
    manager = engine.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    held_back = vars(manager).pop("allocate_slots")
    yield
    manager.allocate_slots = held_back
    engine.llm.reset_prefix_cache()


def test_with_blocks_cached_as_in_stock_vllm_the_second_turn_goes_wrong(
    engine, cached_as_in_stock_vllm, jobs, second_turns, expected_second
):
    """The negative control: this suite must see a block that only one model has written."""
    engine.llm.reset_prefix_cache()
    engine.run(jobs)
    assert engine.run(second_turns) != expected_second


def test_lazy_runs_one_model_where_one_writes(engine, jobs):
    engine.stats()
    engine.run(jobs[1:2])
    stats = engine.stats()
    if engine.runner.tandem_mode == "lazy":
        assert sum(stats["forwards"]) < 1.3 * stats["steps"]
    else:
        assert stats["forwards"] == [stats["steps"], stats["steps"]]


@pytest.mark.parametrize("settings", [dict(selection_strategy="senior"), dict(prob_senior=1.0)])
def test_lazy_runs_the_prompt_alone_through_a_model_that_never_writes(engine, jobs, reference, settings):
    if engine.runner.tandem_mode != "lazy":
        pytest.skip("lock-step runs both models always")
    job = dataclasses.replace(jobs[1], num_tokens=100, tandem=settings)
    engine.llm.reset_prefix_cache()
    engine.stats()
    (written,) = engine.run([job])
    assert reference.wrote(job, written)
    junior, senior = engine.stats()["tokens"]
    assert (junior, senior) == (len(job.prompt), len(job.prompt) + job.num_tokens - 1)
    again = dataclasses.replace(job, prompt=job.prompt + written.token_ids, tandem=dict(selection_strategy="junior"))
    assert reference.wrote_all([again], engine.run([again])), "the response's blocks were kept from the prefix cache"


def test_catch_up_beyond_the_step_budget_takes_several_passes(engine, jobs, monkeypatch):
    """All requests switch at once, each with a query of 30 tokens, in an engine made for 48 a pass."""
    if engine.runner.tandem_mode != "lazy":
        pytest.skip("only the lazy mode catches up")
    sizes = {"run": [], "_run_once": []}
    for forward in engine.runner._forwards:
        for name, seen in sizes.items():
            real = getattr(forward, name)
            monkeypatch.setattr(
                forward, name, lambda b, run, real=real, seen=seen: seen.append(run.lengths.sum()) or real(b, run)
            )
    turns = dict(selection_strategy="chunk", chunk_size=30)
    company = [dataclasses.replace(job, prompt=jobs[0].prompt, num_tokens=70, tandem=turns) for job in jobs[:8]]
    alone = engine.run(company[:1])
    assert engine.run(company) == 8 * alone
    assert max(sizes["run"]) > 48 >= max(sizes["_run_once"])


@pytest.mark.parametrize(("p", "author"), [(1.0, 1), (0.0, 0)])
def test_a_certain_author_writes_alone(any_mode, jobs, p, author):
    jobs = [
        dataclasses.replace(job, tandem=job.tandem | dict(selection_strategy="word", prob_senior=p)) for job in jobs[:6]
    ]
    alone = [dataclasses.replace(job, tandem=dict(selection_strategy=("junior", "senior")[author])) for job in jobs]
    written = any_mode.engine.run(jobs)
    assert all(set(one.mask) == {author} for one in written)
    assert any_mode.reference.wrote_all(alone, written)


def test_aligned_before_a_words_first_piece_comes_from_its_new_author(engine, jobs, reference):
    aligned = [
        dataclasses.replace(job, tandem=dict(request=i, word_align="before", max_gap_tokens=9))
        for i, job in enumerate(jobs[:6])
    ]
    if engine.runner.tandem_mode == "lazy":
        with pytest.raises(REFUSALS, match="word_align='before' needs both models' samples"):
            engine.run(aligned)
        return
    written = engine.run(aligned)
    assert reference.wrote_all(aligned, written)
    after = [dataclasses.replace(job, tandem=job.tandem | dict(word_align="after")) for job in aligned]
    assert not reference.wrote_all(after, written)


def test_aligned_before_the_log_probs_are_the_new_authors(engine, jobs, reference):
    if engine.runner.tandem_mode == "lazy":
        pytest.skip("needs lock-step")
    job = dataclasses.replace(jobs[3], tandem=dict(request=1, word_align="before"))
    sampling = dict(temperature=1.0, seed=11, logprobs=0)
    (alone,) = engine.run([job], **sampling)
    assert engine.run([*jobs[:5], job], **sampling)[-1] == alone
    completion = engine.outputs[-1].outputs[0]
    text, start = job.prompt + alone.token_ids, len(job.prompt) - 1
    by_author = [reference.log_probs(author, text)[start:] for author in (0, 1)]
    writers = torch.tensor([by_author[author][k] for k, author in enumerate(alone.mask)])
    returned = torch.tensor([at[i].logprob for at, i in zip(completion.logprobs, alone.token_ids, strict=True)])
    torch.testing.assert_close(returned, writers, atol=1e-3, rtol=1e-3)


def test_aligned_before_the_second_sample_obeys_a_mask_on_the_logits(engine, jobs, monkeypatch):
    """A trainer wraps ``model.compute_logits`` to ban ids that no tokenizer knows; it must see both samples."""
    if engine.runner.tandem_mode == "lazy":
        pytest.skip("needs lock-step")
    model, banned = engine.runner.model, [i for i in range(512) if i % 2 == 0]
    unmasked = model.compute_logits

    def masked(self, *args, **kwargs):
        logits = unmasked(*args, **kwargs)
        logits[..., banned] = float("-inf")
        return logits

    aligned = [dataclasses.replace(job, tandem=dict(request=i, word_align="before")) for i, job in enumerate(jobs[:6])]
    monkeypatch.setattr(model, "compute_logits", MethodType(masked, model))
    written = engine.run(aligned)
    assert {token % 2 for one in written for token in one.token_ids} == {1}
    assert all(set(one.mask) == {0, 1} for one in written)


def test_responses_of_one_request_sample_and_draw_their_own(engine, jobs, reference):
    """n = 3, seeded, at temperature 1: masks can be recomputed, log-probs are the writer's, prompt's the senior's."""
    params = [
        SamplingParams(
            temperature=1.0, seed=70 + i, n=3, max_tokens=40, ignore_eos=True, logprobs=0, prompt_logprobs=0,
        )
        for i in range(4)
    ]  # fmt: skip
    prompts = [job.prompt for job in jobs[:4]]
    engine.llm.reset_prefix_cache()
    outputs = engine.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    for i, output in enumerate(outputs):
        assert len({tuple(c.token_ids) for c in output.outputs}) == 3
        assert len({tuple(c.authorship_mask) for c in output.outputs}) == 3
        prompt_log_probs = [next(iter(at.values())).logprob for at in output.prompt_logprobs[1:]]
        senior = reference.log_probs(1, prompts[i])
        torch.testing.assert_close(torch.tensor(prompt_log_probs), senior, atol=1e-3, rtol=1e-3)
        for c in output.outputs:
            ids, mask = list(c.token_ids), c.authorship_mask
            assert mask == reference.mask_of(ids, {}, prompts[i], 70 + i + c.index)
            by_author = [reference.log_probs(author, prompts[i] + ids)[len(prompts[i]) - 1 :] for author in (0, 1)]
            writers = torch.tensor([by_author[author][k] for k, author in enumerate(mask)])
            returned = torch.tensor([at[token].logprob for at, token in zip(c.logprobs, ids, strict=True)])
            torch.testing.assert_close(returned, writers, atol=1e-3, rtol=1e-3)


def test_seeded_requests_write_the_same_alone_and_in_company(engine, jobs):
    """Also where prompts come in chunks, and beside requests without a seed: stock vLLM on a CPU manages neither."""
    sampling = dict(temperature=1.0, top_p=0.9)
    alone = []
    for i, job in enumerate(jobs[:5]):
        engine.llm.reset_prefix_cache()
        alone += engine.run([job], **sampling, seed=5 + i)
    assert max(len(job.prompt) for job in jobs[:5]) > 48, "longer than a chunk"
    engine.llm.reset_prefix_cache()
    seeds = [5, 6, 7, 8, 9, None, None, 12]
    assert engine.run(jobs[:8], **sampling, seed=seeds)[:5] == alone


def test_a_cut_response_resumes_where_it_was(engine, jobs, expected):
    kept = [13 + i % 9 for i in range(len(jobs))]
    rest = [
        dataclasses.replace(
            job,
            prompt=job.prompt + written.token_ids[:k],
            num_tokens=job.num_tokens - k,
            tandem=job.tandem | dict(resume_len=k),
        )
        for job, written, k in zip(jobs, expected, kept, strict=True)
    ]
    for k, whole, resumed in zip(kept, expected, engine.run(rest), strict=True):
        assert whole.token_ids[k:] == resumed.token_ids
        assert whole.mask[k:] == resumed.mask


def test_a_stop_token_ends_the_response_whoever_writes_it_and_the_transfer_parameters_have_the_mask(any_mode, jobs):
    engine = any_mode.engine
    for job, written in zip(jobs, any_mode.expected[:6], strict=False):
        end = written.token_ids.index(written.token_ids[20]) + 1
        stopped = engine.run([job], stop_token_ids=[written.token_ids[20]])[0]
        assert (stopped.token_ids, stopped.mask) == (written.token_ids[:end], written.mask[:end])
        assert engine.outputs[0].kv_transfer_params[AUTHORSHIP_KEY] == stopped.mask


def test_a_mask_travels_once_unless_the_front_end_can_end_the_response(engine, jobs, expected, monkeypatch):
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    arrays, real = [], scheduler.update_from_output

    def noting(*args):
        outputs = real(*args)
        arrays.extend(
            len(output.routed_experts)
            for client in outputs.values()
            for output in client.outputs
            if output.routed_experts is not None
        )
        return outputs

    monkeypatch.setattr(scheduler, "update_from_output", noting)
    assert engine.run(jobs[:3]) == expected[:3]
    assert sorted(arrays) == sorted(job.num_tokens for job in jobs[:3])
    arrays.clear()
    text = engine.outputs[0].outputs[0].text
    stop = text[len(text) // 2 :][:6]
    (stopped,) = engine.run(jobs[:1], stop=[stop])
    assert engine.outputs[0].outputs[0].finish_reason == "stop"
    assert 0 < len(stopped.token_ids) < jobs[0].num_tokens
    assert stopped.mask == expected[0].mask[: len(stopped.token_ids)]
    assert set(arrays) == {1}


def test_each_of_several_responses_has_a_mask_and_none_stands_for_all(engine, jobs, reference):
    params = SamplingParams(temperature=1.0, seed=3, n=2, max_tokens=20, ignore_eos=True)
    (output,) = engine.llm.generate([{"prompt_token_ids": jobs[0].prompt}], params, use_tqdm=False)
    for one in output.outputs:
        assert one.authorship_mask == reference.mask_of(one.token_ids, {}, jobs[0].prompt, 3 + one.index)
    assert output.outputs[0].authorship_mask != output.outputs[1].authorship_mask
    assert AUTHORSHIP_KEY not in (output.kv_transfer_params or {})
    assert params.extra_args is None, "the caller's own parameters stay as they are"


def test_aborted_requests_leave_no_trace(any_mode, jobs):
    engine, expected = any_mode.engine, any_mode.expected
    core, runner = engine.llm.llm_engine, engine.runner
    for i, job in enumerate(jobs[:6]):
        params = SamplingParams(
            temperature=0, max_tokens=job.num_tokens, ignore_eos=True, extra_args={"tandem": job.tandem}
        )
        core.add_request(f"abort-{i}", {"prompt_token_ids": job.prompt}, params)
    done = []
    for _ in range(12):
        done += core.step()
    core.abort_request(["abort-1", "abort-4"])
    while core.has_unfinished_requests():
        done += core.step()
    finished = {int(output.request_id.split("-")[1]): output.outputs[0] for output in done if output.finished}
    assert {0, 2, 3, 5} <= finished.keys()
    for i in (0, 2, 3, 5):
        assert (list(finished[i].token_ids), finished[i].authorship_mask) == (expected[i].token_ids, expected[i].mask)
    engine.run(jobs[:1])
    kept = [runner._states]
    if runner.tandem_config.mode == "speculative":
        kept += [runner._noise_keys, runner._resumed, runner._draft_log_probs._of]
    assert all(len(one) <= 1 for one in kept)


def test_a_faulty_request_is_refused_and_the_engine_goes_on(engine, jobs, expected):
    for faulty, says in (
        (dict(selection_strategy="worte"), "selection_strategy is 'worte'"),
        (dict(prob_senior=1.5), "prob_senior is 1.5"),
        (dict(p=0.5), "unknown key.* p; expected any of"),
        (dict(resume_len=-1), "resume_len"),
    ):
        with pytest.raises(REFUSALS, match=says):
            engine.run([dataclasses.replace(jobs[0], tandem=faulty)])
    for sampling in (dict(n=2, temperature=1.0), dict(n=2, temperature=1.0, seed=1)):
        with pytest.raises(REFUSALS, match="n is 2, and all responses would draw the same author coins"):
            engine.run(jobs[:1], **sampling)
    too_long = dataclasses.replace(jobs[0], tandem=dict(resume_len=len(jobs[0].prompt) + 1))
    with pytest.raises(REFUSALS, match="resume_len is .*, more than the"):
        engine.run([too_long])
    assert engine.run(jobs[:2]) == expected[:2]


def test_a_faulty_request_that_passed_the_front_end_ends_alone(engine, jobs, expected, monkeypatch):
    processor = engine.llm.llm_engine.input_processor
    engine.run(jobs[:1])
    monkeypatch.setattr(processor, "tandem_rules", SimpleNamespace(check=lambda request, from_client=False: None))
    too_long = dataclasses.replace(jobs[0], tandem=dict(resume_len=len(jobs[0].prompt) + 1))
    written = engine.run([too_long, jobs[1]])
    assert engine.outputs[0].outputs[0].finish_reason == "error"
    assert written[0].mask is None
    assert written[1] == expected[1]


def test_the_junior_outlives_a_deep_sleep(any_mode, jobs):
    """The CPU backend does not sleep, so the test plays the part of the discarded memory."""
    engine, expected = any_mode.engine, any_mode.expected
    for _ in range(2):
        engine.llm.collective_rpc("sleep", args=(2,))
        with torch.no_grad():
            for tensor in engine.runner.junior.parameters():
                tensor.zero_()
        engine.llm.collective_rpc("wake_up", args=(["kv_cache"],))
        engine.llm.reset_prefix_cache()
        assert engine.run(jobs[:6]) != expected[:6]
        engine.llm.collective_rpc("wake_up", args=(["weights"],))
        engine.llm.reset_prefix_cache()
        assert engine.run(jobs[:6]) == expected[:6]


def test_the_kv_cache_makes_room_for_both_models(engine):
    config = engine.runner.kv_cache_config
    floats_per_token = 2 * 32 * (3 * 2 + 2 * 4)  # keys and values, head size, layers and KV heads of both models
    block = engine.runner.cache_config.block_size * floats_per_token * 4
    assert config.num_blocks * block <= 1 << 26 < (config.num_blocks + 1) * block


def test_new_senior_weights_by_plain_names_and_the_junior_untouched(any_mode, jobs):
    engine, reference, runner = any_mode.engine, any_mode.reference, any_mode.engine.runner
    junior_before = {name: tensor.clone() for name, tensor in runner.junior.state_dict().items()}
    original = {name: tensor.clone() for name, tensor in reference.models[1].state_dict().items()}
    trained = copy.copy(reference)
    trained.models = dict(reference.models) | {1: copy.deepcopy(reference.models[1])}
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in trained.models[1].parameters():
            p.add_(0.1 * p.std() * torch.randn(p.shape, generator=noise))
    try:
        runner.reload_weights(weights_iterator=iter(trained.models[1].state_dict().items()))
        engine.llm.reset_prefix_cache()
        written = engine.run(jobs[:6])
        assert trained.wrote_all(jobs[:6], written) and not reference.wrote_all(jobs[:6], written)
        junior = runner.junior.state_dict()
        for name, tensor in junior_before.items():
            assert torch.equal(junior[name], tensor)
    finally:
        runner.reload_weights(weights_iterator=iter(original.items()))
        engine.llm.reset_prefix_cache()
