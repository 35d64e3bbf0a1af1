"""What SeRL cannot run with is refused with the key to set; the length of a run and its split over devices."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipes.core.split_resources import choose_backend, rollout_devices
from recipes.errors import ConfigError, DataError, MissingFileError
from recipes.serl.generation import rollout_engines
from recipes.serl.guards import check_serl_config
from recipes.serl.run import Schedule
from recipes.serl.seeds.prepare import ANSWER_TEMPLATE
from recipes.serl.settings import SerlSettings

ROOM = Path(__file__).resolve().parents[3] / "recipes" / "serl"


@pytest.fixture
def seeds(tmp_path):
    path = tmp_path / "seeds.jsonl"
    path.write_text("".join(json.dumps({"problem": f"Question number {i}?"}) + "\n" for i in range(10)))
    return path


@pytest.fixture
def serl(composed, seeds):
    return lambda *overrides: composed("serl", f"serl.seeds={seeds}", *overrides)


@pytest.fixture
def base(composed):
    return composed("serl")


def changed(base, seeds, changes):
    config = base.copy()
    for key, value in {"serl.seeds": str(seeds), **changes}.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


def test_grpo_has_its_penalty_in_the_loss_with_the_same_coefficient(serl):
    config = serl("estimator=grpo", "algorithm.kl_ctrl.kl_coef=1e-3")
    actor = config.actor_rollout_ref.actor
    assert (actor.use_kl_loss, actor.kl_loss_type, actor.kl_loss_coef) == (True, "low_var_kl", 1e-3)
    assert not config.algorithm.use_kl_in_reward


FIXED_MICRO_BATCHES = {
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": False,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 5,
}
HALF = {"serl.vote.trained_share": 0.5, "actor_rollout_ref.actor.ppo_mini_batch_size": 16}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"trainer.v1.trainer_mode": "sync"}, "trainer.v1.trainer_mode"),
        ({"algorithm.adv_estimator": "gae"}, "algorithm.adv_estimator"),
        ({"algorithm.adv_estimator": "serl_grpo"}, "algorithm.use_kl_in_reward"),
        ({"algorithm.adv_estimator": "serl_rloo", "algorithm.gamma": 0.9}, "algorithm.gamma"),
        ({"algorithm.filter_groups.enable": True}, "algorithm.filter_groups.enable"),
        ({"algorithm.group_hook.path": "pkg://recipes.serl.voting"}, "algorithm.group_hook.path"),
        ({"critic.enable": True}, "critic.enable"),
        ({"data.gen_batch_size": 4}, "data.gen_batch_size"),
        ({"trainer.v1.sampler.sync_refill_failed_groups": True}, "trainer.v1.sampler.sync_refill_failed_groups"),
        ({"actor_rollout_ref.rollout.n": 1}, "actor_rollout_ref.rollout.n"),
        ({"actor_rollout_ref.actor.ppo_mini_batch_size": 3}, "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ({"serl.vote.trained_share": 0.3}, "serl.vote.trained_share"),
        ({"serl.vote.trained_share": 0.625}, "actor_rollout_ref.actor.ppo_mini_batch_size"),
        (HALF, "actor_rollout_ref.actor.ppo_mini_batch_size"),
        (FIXED_MICRO_BATCHES, "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"),
        ({"actor_rollout_ref.rollout.max_model_len": 1500}, "actor_rollout_ref.rollout.max_model_len"),
        ({"serl.instructions.few_shot_generation": 11}, "serl.instructions.few_shot_generation"),
        ({"serl.no_such_key": 1}, "serl.no_such_key"),
    ],
)
def test_what_cannot_run_is_refused_with_the_key(base, seeds, changes, key):
    with pytest.raises(ConfigError) as refusal:
        check_serl_config(changed(base, seeds, changes))
    assert refusal.value.key == key


def test_seed_files_are_read_before_anything_starts(base, seeds, tmp_path):
    with pytest.raises(MissingFileError):
        check_serl_config(changed(base, tmp_path / "none.jsonl", {}))
    with pytest.raises(MissingFileError):
        check_serl_config(changed(base, seeds, {"serl.instructions.prompt_file": "nowhere.json"}))
    with pytest.raises(DataError):
        check_serl_config(changed(base, seeds, {"serl.question_key": "question"}))


def test_length_of_the_original_run_follows_from_the_config(base):
    prompts = base.data.train_batch_size
    schedule = Schedule(base.serl.instructions_num_per_iteration, prompts_per_step=prompts)
    updates_per_step = prompts // base.actor_rollout_ref.actor.ppo_mini_batch_size
    assert (schedule.max_steps, schedule.max_steps * updates_per_step) == (125, 2000)


def test_prepared_data_asks_as_the_default_convention_does(serl):
    assert serl().serl.answer_template == ANSWER_TEMPLATE


@pytest.mark.parametrize(("platform", "backend"), [([], "nccl"), (["+platform=cpu"], "gloo")], ids=["cuda", "cpu"])
def test_split_resources_take_as_many_devices_again(serl, platform, backend):
    config = serl(*platform, "resources=split", "trainer.nnodes=2")
    choose_backend(config)
    check_serl_config(config)
    rollout = config.actor_rollout_ref.rollout
    assert not config.actor_rollout_ref.hybrid_engine and not rollout.free_cache_engine
    assert (rollout.nnodes, rollout.n_gpus_per_node, rollout_devices(config)) == (2, 8, 16)
    assert rollout.checkpoint_engine.backend == backend


def test_each_rollout_engine_gets_a_few_shot_prompt(serl):
    config = serl("trainer.nnodes=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    assert config.serl.instructions.few_shot_generation_batch_size is None
    assert rollout_engines(config) == 8
    assert rollout_engines(serl("resources=split", "actor_rollout_ref.rollout.n_gpus_per_node=3")) == 3
    assert rollout_engines(serl("scale=toy")) == 1


@pytest.mark.parametrize("steps", [1, 2, 20, 125])
def test_every_step_trains_at_a_rate_above_zero_that_never_rises_after_the_warm_up(base, steps):
    import torch
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup

    optim = trainer_with(base, steps * base.data.train_batch_size).config.actor_rollout_ref.actor.optim
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    warmup = int(optim.lr_warmup_steps_ratio * optim.total_training_steps)
    scheduler = get_cosine_schedule_with_warmup(
        optimizer,
        warmup,
        optim.total_training_steps,
        min_lr_ratio=optim.min_lr_ratio,
        zero_indexed_step=optim.zero_indexed_step,
    )
    rates = []
    for _ in range(steps):
        rates += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert min(rates) > 0.1 and rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert steps < 20 or rates[-1] < 0.12


def trainer_with(config, rows):
    """A trainer of `variant=majority` that has opened a dataset of so many rows."""
    from recipes.serl.trainer import SerlTrainer

    made = SerlTrainer.__new__(SerlTrainer)
    OmegaConf.update(config, "trainer.total_epochs", 1)
    OmegaConf.set_struct(config, True)
    made.config, made.settings = config, SerlSettings(variant="majority", instructions_num_per_iteration=7500)
    made.set_length(rows)
    return made


@pytest.mark.parametrize(("rows", "steps"), [(8, 1), (16, 1), (30, 2), (100, 7)])
def test_small_data_trains_to_its_end(base, rows, steps):
    made = trainer_with(base, rows)
    assert made.steps_per_epoch == made.total_training_steps == steps
    assert made.schedule.prompts_left(0) == rows


def test_rollouts_on_devices_of_their_own_have_as_many_as_asked(serl):
    devices = ("trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.n_gpus_per_node=6")
    config = serl("scale=qwen3_4b", "resources=split", *devices)
    choose_backend(config)
    check_serl_config(config)
    assert (config.trainer.n_gpus_per_node, rollout_devices(config)) == (2, 6)


def test_ttrl_trains_half_of_its_answers_on_every_row_of_every_epoch(serl):
    config = serl("scale=qwen3_4b", "variant=ttrl")
    check_serl_config(config)
    settings = SerlSettings.from_mapping(config.serl)
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.n, settings.trained_of(rollout.n), config.algorithm.adv_estimator) == (64, 32, "serl_grpo")
    assert settings.iterations == config.trainer.total_epochs


def test_an_iteration_without_a_number_is_the_dataset(base):
    made = trainer_with(base, 30)
    made.settings = SerlSettings(variant="majority", instructions_num_per_iteration=None, iterations=2)
    OmegaConf.update(made.config, "trainer.total_epochs", 2)
    OmegaConf.update(made.config, "trainer.total_training_steps", None)
    made.set_length(30)
    assert made.schedule.total_prompts == 60 and made.total_training_steps == 4
    assert [made.schedule.iteration(trained) for trained in (0, 29, 30, 60)] == [1, 1, 2, 2]


def test_missing_seeds_are_refused_with_the_command_that_makes_them(tmp_path, monkeypatch, capsys):
    from recipes.launch.start import main
    from recipes.serl.main import RECIPE

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SERL_DIR", raising=False)
    assert main(RECIPE, ["--dry-run", "scale=llama3_2_3b"]) == 2
    assert "seeds.jsonl does not exist" in (said := capsys.readouterr().err)
    assert said.rstrip().endswith("python -m recipes.serl.seeds.prepare --model MODEL makes it")
