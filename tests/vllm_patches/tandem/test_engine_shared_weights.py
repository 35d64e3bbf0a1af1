"""A junior that reads the base weights of a senior with adapters: no second copy, and the same tokens."""

from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file
from vllm.model_executor.layers import utils

import vllm_patches
from vllm_patches.tandem.junior import memory_of
from vllm_patches.tandem.shared_weights import SharedWeightsError


@pytest.fixture(scope="module", params=["lock_step", "lazy", "speculative"])
def engine(request, open_engine, models, adapted):
    """``share_weights`` is left at auto; the CPU switch keeps the weights where a test can look at them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "dispatch_cpu_unquantized_gemm", utils.dispatch_cpu_unquantized_gemm)
        patch.setenv(vllm_patches.CPU_SWITCH, "1")
        settings = dict(junior_model=str(models["senior"]), mode=request.param)
        few = dict(
            num_gpu_blocks_override=14 if request.param == "speculative" else 16, max_model_len=384, max_num_seqs=8
        )
        yield open_engine(models["senior"], settings, **adapted.engine_options, **few)


@pytest.fixture
def worker(engine):
    return engine.llm.llm_engine.model_executor.driver_worker.worker


@pytest.fixture(scope="module")
def nine(adapted, reference_with, jobs):
    """Nine requests, the number of the adapter that each takes, and what the loop writes for them."""
    loops = [adapted.loop(reference_with("senior"), name) for name in adapted.names]
    short = [type(job)(job.prompt, min(job.num_tokens, 24), job.tandem) for job in jobs[:9]]
    chosen = [i % 3 for i in range(len(short))]
    wanted = [loops[k].write(job) for k, job in zip(chosen, short, strict=True)]
    assert wanted != [loops[0].write(job) for job in short]
    return short, chosen, wanted


def storages(*models) -> dict[int, int]:
    """Bytes behind each address at which tensors of the models lie."""
    found = [tensor.untyped_storage() for model in models for tensor in (*model.parameters(), *model.buffers())]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def send(engine, worker, adapter) -> None:
    """Put an adapter in the place of the one with its number."""
    worker.remove_lora(adapter.lora_int_id)
    assert worker.add_lora(adapter)
    engine.llm.reset_prefix_cache()


@contextmanager
def junior_with_adapter(runner, folder):
    """One linear layer of the junior adds an adapter, wherever the junior's rows go through it."""
    tensors = load_file(folder / "adapter_model.safetensors")
    a, b = (tensors[f"base_model.model.model.layers.0.mlp.down_proj.lora_{side}.weight"] for side in "AB")

    def adapt(layer, of_junior):
        def forward(x):
            output, bias = layer(x)
            rows = slice(*of_junior(len(x)))
            output[rows] += x[rows] @ a.T @ b.T
            return output, bias

        stand_in = torch.nn.Module()
        stand_in.forward = forward
        return stand_in

    found = [(runner.junior, lambda rows: (0, rows))]
    if getattr(runner, "_one_pass", None) is not None:
        found.append((runner._one_pass._both, lambda rows: (rows // 2, rows)))
    layers = [(model.model.layers[0].mlp, of_junior) for model, of_junior in found]
    kept = [mlp.down_proj for mlp, _ in layers]
    for mlp, of_junior in layers:
        mlp.down_proj = adapt(mlp.down_proj, of_junior)
    try:
        yield
    finally:
        for (mlp, _), layer in zip(layers, kept, strict=True):
            mlp.down_proj = layer


def test_every_weight_of_the_junior_is_the_seniors(engine):
    senior, junior = engine.runner.get_model(), engine.runner.junior
    base = {name.replace(".base_layer.", "."): tensor for name, tensor in senior.named_parameters()}
    mine = dict(junior.named_parameters())
    assert mine.keys() == base.keys()
    assert {name: tensor.data_ptr() for name, tensor in mine.items()} == {
        name: tensor.data_ptr() for name, tensor in base.items()
    }
    more = sum(storages(senior, junior).values()) - sum(storages(senior).values())
    assert more < 1000 < memory_of(junior)


def test_tokens_with_and_without_adapters_are_the_loops(engine, adapted, nine):
    """In too few blocks for nine requests, and once more from the prefix cache."""
    jobs, chosen, wanted = nine
    engine.stats()
    assert adapted.run(engine, jobs, chosen) == wanted
    assert engine.stats()["resumed_requests"] > 0
    for _ in range(2):
        assert adapted.run(engine, jobs[:3], chosen[:3]) == wanted[:3]
    assert engine.stats()["cached_tokens"] > 0


def test_the_comparison_sees_a_junior_with_the_adapter(engine, adapted, nine):
    """The control: one layer of one adapter on the junior's rows, and other tokens come out."""
    jobs, chosen, wanted = nine
    with junior_with_adapter(engine.runner, adapted.folder / "one"):
        assert adapted.run(engine, jobs, chosen) != wanted
    engine.llm.reset_prefix_cache()
    assert adapted.run(engine, jobs, chosen) == wanted


def test_lock_step_runs_both_in_one_pass(engine, adapted, nine):
    """Prompts longer than half the budget of 48 tokens go through each model alone."""
    jobs, chosen, _ = nine
    engine.stats()
    adapted.run(engine, jobs, chosen)
    stats = engine.stats()
    if getattr(engine.runner, "_one_pass", None) is not None:
        assert stats["steps"] > stats["joint_passes"] > stats["steps"] / 2
    else:
        assert not stats.get("joint_passes")


def test_a_sync_of_the_adapter_changes_the_senior_alone(engine, worker, adapted, jobs):
    """As a trainer does it: another adapter under the same number, and the prefix cache emptied."""
    weights = {name: tensor.clone() for name, tensor in engine.runner.junior.named_parameters()}

    def answers():
        authors = [dict(selection_strategy=model, request=0) for model in ("senior", "junior") for _ in range(3)]
        short = [type(jobs[0])(jobs[0].prompt, 20, author) for author in authors]
        written = [one.token_ids for one in adapted.run(engine, short, [0, 1, 2] * 2)]
        return written[:3], written[3:]

    by_senior, by_junior = answers()
    assert by_senior[0] != by_senior[1] != by_senior[2] != by_senior[0]
    assert by_junior == [by_senior[0]] * 3
    one, two = adapted.requests()[1:]
    try:
        send(engine, worker, type(one)(one.lora_name, one.lora_int_id, two.lora_path))
        assert answers() == ([by_senior[0], by_senior[2], by_senior[2]], by_junior)
    finally:
        send(engine, worker, one)
    assert answers() == (by_senior, by_junior)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in engine.runner.junior.named_parameters())


def test_full_weights_are_refused(engine, worker, reference):
    weights = {name: tensor.clone() for name, tensor in engine.runner.junior.named_parameters()}
    others = [(name, tensor + 1) for name, tensor in reference.models[1].state_dict().items()]
    for load in (engine.runner.get_model().load_weights, engine.runner.reload_weights, worker.reload_weights):
        with pytest.raises(SharedWeightsError, match=r"Send adapters alone \(verl: model.lora.merge=false"):
            load(iter(others))
    with pytest.raises(SharedWeightsError, match="full weights"):
        worker.start_weight_update()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in engine.runner.junior.named_parameters())


@torch.no_grad()
def test_weights_changed_past_load_weights_end_the_run(engine, worker, adapted):
    name, weight = next((n, w) for n, w in engine.runner.junior.named_parameters() if w.ndim == 2)
    kept = weight.clone()
    weight.view(-1)[5] += 1e-3
    try:
        for following in (lambda: worker.add_lora(adapted.requests()[1]), lambda: worker.wake_up(["kv_cache"])):
            with pytest.raises(SharedWeightsError, match=f"1 of the weights .* {name}"):
                following()
    finally:
        weight.copy_(kept)
    worker.wake_up(["kv_cache"])


def test_the_base_outlives_a_deep_sleep(engine, adapted, nine):
    """The CPU backend does not sleep, so the test plays the part of the discarded memory."""
    jobs, chosen, wanted = (part[:3] for part in nine)
    engine.llm.collective_rpc("sleep", args=(2,))
    with torch.no_grad():
        for tensor in engine.runner.junior.parameters():
            tensor.zero_()
    engine.llm.collective_rpc("wake_up", args=(["weights"],))
    engine.llm.collective_rpc("wake_up", args=(["kv_cache"],))
    engine.llm.reset_prefix_cache()
    assert adapted.run(engine, jobs, chosen) == wanted
