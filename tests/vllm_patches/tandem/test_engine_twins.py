"""Two models with the same weights write, greedily, what one of them writes alone, whatever the strategy."""

import dataclasses

import pytest
from vllm.forward_context import get_forward_context

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def alone(jobs, reference):
    return [reference.write(dataclasses.replace(job, tandem=dict(selection_strategy="senior"))) for job in jobs[:4]]


@pytest.mark.parametrize("mode", ["lock_step", "lazy"])
def test_twins_write_what_one_writes_alone(open_engine, models, jobs, alone, mode):
    engine = open_engine(models["senior"], dict(junior_model=str(models["senior"]), mode=mode))
    seen = set()
    for strategy in ("word", "bernoulli", "chunk", "alternating", "sentence", "senior", "junior"):
        for p in (0.0, 0.3, 1.0):
            tandem = dict(selection_strategy=strategy, prob_senior=p, chunk_size=3)
            written = engine.run([dataclasses.replace(job, tandem=tandem) for job in jobs[:4]])
            assert [one.token_ids for one in written] == [one.token_ids for one in alone]
            seen |= {author for one in written for author in one.mask}
    assert seen == {0, 1}


@pytest.mark.parametrize("mode", ["lock_step", "lazy"])
@pytest.mark.parametrize("junior", ["junior", "sibling"])
def test_each_models_layers_run_on_metadata_of_its_own_builders(
    open_engine, models, jobs, expected_with, mode, junior, monkeypatch
):
    engine = open_engine(models["senior"], dict(junior_model=str(models[junior]), mode=mode))
    runner, built_for, seen = engine.runner, {}, {"junior": set(), "senior": set()}
    for builder_class in {type(group.get_metadata_builder()) for group in runner.attn_groups[0]}:
        for name in ("build", "update_block_table"):
            real = getattr(builder_class, name)

            def noting(builder, *args, real=real, **kwargs):
                metadata = real(builder, *args, **kwargs)
                built_for[id(metadata)] = (metadata, builder.vllm_config.model_config.model)
                return metadata

            monkeypatch.setattr(builder_class, name, noting)

    def note(layers, of):
        def hook(*_):
            metadata = get_forward_context().attn_metadata
            seen[of] |= {built_for[id(metadata[name])][1] for name in layers}

        return hook

    context = runner.compilation_config.static_forward_context
    senior_layers = set(context) - runner._junior_layers
    assert senior_layers and runner._junior_layers
    handles = [
        runner.junior.register_forward_pre_hook(note(runner._junior_layers, "junior")),
        runner.model.register_forward_pre_hook(note(senior_layers, "senior")),
    ]
    assert engine.run(jobs[:9]) == expected_with(junior)[:9]
    for handle in handles:
        handle.remove()
    assert seen == {"junior": {str(models[junior])}, "senior": {str(models["senior"])}}
