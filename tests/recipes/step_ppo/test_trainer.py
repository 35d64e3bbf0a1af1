"""The advantage stage on a real TransferQueue: infos, advantages row by row."""

from types import SimpleNamespace

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

LENGTHS = (3, 1, 4, 2)
KEYS = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]


def info():
    return {"reward_extra_info": {"acc": 1.0, "n_steps": 2.0, "malformed": 0.0, "process": 0.5}}


@pytest.fixture
def batch(queue):
    """Four rows, of which the last is verl's padding."""
    from recipes.core.data_plane import KVBatchMeta, jagged

    generator = torch.Generator().manual_seed(0)
    draw = lambda: jagged([torch.randn(length, generator=generator) for length in LENGTHS])  # noqa: E731
    fields = {name: draw() for name in ("token_level_rewards", "values")}
    fields |= {
        name: jagged([torch.ones(n, dtype=torch.long) for n in LENGTHS]) for name in ("response_mask", "loss_mask")
    }
    fields["extra_fields"] = NonTensorStack(*[info() for _ in LENGTHS])
    tags = [{"response_len": n, "is_padding": key == KEYS[-1]} for key, n in zip(KEYS, LENGTHS, strict=True)]
    queue.kv_batch_put(keys=KEYS, partition_id="train", fields=TensorDict(fields, batch_size=4), tags=tags)
    yield KVBatchMeta(keys=list(KEYS), tags=tags, partition_id="train", extra_info={})
    queue.kv_clear(keys=KEYS, partition_id="train")


@pytest.fixture
def trainer(queue):
    """The trainer's own stage without the processes of a run."""
    from recipes.step_ppo.settings import StepPPOSettings
    from recipes.step_ppo.trainer import StepPPOTrainer

    found = object.__new__(StepPPOTrainer)
    found.settings = StepPPOSettings.from_mapping({})
    found.config = SimpleNamespace(algorithm=SimpleNamespace(use_kl_in_reward=True, gamma=1.0, lam=0.95))
    return found


def test_infos_are_those_of_the_rollouts_without_padding(trainer, batch):
    found = trainer._reward_infos(batch)
    assert list(found) == KEYS[:3]
    assert trainer._telemetry(batch, found)["step_ppo/tokens/mean"] == pytest.approx(8 / 3)


def test_skipped_responses_are_not_centred():
    from recipes.core.groups import Group, Sample
    from recipes.step_ppo.trainer import centre
    from reward_fns.result import Score, Skip

    results = Score(1.0, acc=1.0), Score(0.0, acc=0.0), Skip("prm_status_503"), Score(0.0, acc=0.0)
    group = Group("u", [Sample(f"u_{i}_0", "", one, 1, {}) for i, one in enumerate(results)])
    centre(group, {"u_0_0": 0.5, "u_1_0": 0.75, "u_2_0": 9.0, "u_3_0": 0.25})
    assert [getattr(one.result, "value", None) for one in group.samples] == [1.5, 0.25, None, -0.25]
    assert group.samples[0].judged.value == 1.0


def test_the_step_centres_what_it_reads_and_leaves_the_advantages_to_verl(trainer, batch, monkeypatch):
    from recipes.core.groups import Group, Sample
    from recipes.core.trainer import DuetTrainer
    from recipes.step_ppo.settings import StepPPOSettings
    from reward_fns.result import Score

    monkeypatch.setattr(
        DuetTrainer, "read_groups", lambda *_: [Group("a", [Sample(KEYS[0], "", Score(1.0, acc=1.0), 1, {})])]
    )
    monkeypatch.setattr(DuetTrainer, "_compute_advantage", lambda self, batch, metrics: batch)
    for centre, value in ((False, 1.0), (True, 1.5)):
        trainer.settings = StepPPOSettings.from_mapping({"reward": {"centre": centre}})
        own = []
        monkeypatch.setattr(trainer, "_overwrite_advantages", own.append)
        assert trainer.read_groups(batch)[0].samples[0].result.value == value
        trainer._compute_advantage(batch, {})
        assert bool(own) is not centre


def test_advantages_are_raw_gae_of_each_row(trainer, batch):
    from recipes.core import data_plane
    from recipes.step_ppo.advantage import gae

    trainer._overwrite_advantages(batch)
    rows = data_plane.read(batch, "token_level_rewards", "values", "advantages", "returns")
    for number, length in enumerate(LENGTHS):
        one = {name: rows[name][number][None] for name in rows}
        advantages, returns = gae(one["token_level_rewards"], one["values"], torch.ones(1, length))
        torch.testing.assert_close(one["advantages"], advantages)
        torch.testing.assert_close(one["returns"], returns)
