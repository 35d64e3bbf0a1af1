"""Rows written to verl's data plane are read back as they were, on a real TransferQueue."""

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

LENGTHS = (3, 1, 2, 4)
KEYS = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
INFO = [{"reward_extra_info": {"score": number}} for number in range(4)]


@pytest.fixture
def batch(queue):
    from recipes.core.data_plane import KVBatchMeta, jagged

    responses = [torch.arange(length) for length in LENGTHS]
    fields = {
        "responses": jagged(responses),
        "rm_scores": jagged([torch.zeros(length) for length in LENGTHS]),
        "extra_fields": NonTensorStack(*INFO),
        "data_source": NonTensorStack(*["toy"] * 4),
    }
    tags = [{"response_len": length, "is_padding": length == 4} for length in LENGTHS]
    queue.kv_batch_put(keys=KEYS, partition_id="train", fields=TensorDict(fields, batch_size=4), tags=tags)
    yield KVBatchMeta(keys=list(KEYS), tags=tags, partition_id="train", extra_info={"temperature": 0.7})
    queue.kv_clear(keys=KEYS, partition_id="train")


def test_tensors_and_objects_come_row_by_row(batch):
    from recipes.core import data_plane

    found = data_plane.read(batch, "responses", "extra_fields", "data_source")
    assert [row.tolist() for row in found["responses"]] == [list(range(length)) for length in LENGTHS]
    assert found["extra_fields"] == INFO and found["data_source"] == ["toy"] * 4
    chosen = data_plane.read(batch, "extra_fields", keys=["b_1_0", "a_1_0"])
    assert chosen == {"extra_fields": [INFO[3], INFO[1]]}
    assert data_plane.read(batch, "responses", keys=[]) == {"responses": []}
    assert data_plane.read(batch).keys() >= {"responses", "rm_scores", "extra_fields", "data_source"}


def test_written_fields_are_read_back_and_the_batch_knows_them(batch):
    from recipes.core import data_plane

    written = data_plane.write(batch, {"advantages": [torch.full((length,), 0.5) for length in LENGTHS]})
    assert written.keys == batch.keys and written.tags == batch.tags
    assert written.extra_info["temperature"] == 0.7
    assert [row.tolist() for row in data_plane.read(written, "advantages")["advantages"]] == [
        [0.5] * n for n in LENGTHS
    ]
    same = data_plane.write(batch, {"rm_scores": [torch.ones(2)]}, keys=["b_0_0"])
    assert same is batch
    rows = data_plane.read(batch, "rm_scores")["rm_scores"]
    assert [row.tolist() for row in rows] == [[0.0] * 3, [0.0], [1.0, 1.0], [0.0] * 4]


def test_rewards_stand_on_the_last_token_of_the_named_rows(batch):
    from recipes.core import data_plane

    data_plane.write_rewards(batch, {"a_0_0": 2.0, "b_1_0": -1.0, "elsewhere_0_0": 9.0})
    rows = data_plane.read(batch, "rm_scores")["rm_scores"]
    assert [row.tolist() for row in rows] == [[0, 0, 2.0], [0], [0, 0], [0, 0, 0, -1.0]]
    data_plane.write_rewards(batch, {})


def test_select_join_and_names_of_rows(batch):
    from recipes.core import data_plane

    first = data_plane.select(batch, ["a_1_0", "b_0_0"])
    rest = data_plane.select(batch, lambda key: key not in first.keys)  # noqa: SIM118
    assert first.keys == ["a_1_0", "b_0_0"] and [tag["response_len"] for tag in first.tags] == [1, 2]
    assert first.extra_info == batch.extra_info and first.extra_info is not batch.extra_info
    joined = data_plane.join([first, rest])
    assert joined.keys == ["a_1_0", "b_0_0", "a_0_0", "b_1_0"] and len(joined.tags) == 4
    assert data_plane.real_keys(batch) == ["a_0_0", "a_1_0", "b_0_0"]
    assert data_plane.uid_of("some_uid_3_1") == "some_uid" and data_plane.session_of("some_uid_3_1") == (3, 1)


def test_cleared_rows_are_gone(batch, queue):
    from recipes.core import data_plane

    data_plane.clear("train", ["a_0_0", "a_0_0", "a_1_0"])
    data_plane.clear("train", [])
    assert sorted(queue.kv_list("train")["train"]) == ["b_0_0", "b_1_0"]
    data_plane.write(batch, {"rm_scores": [torch.zeros(n) for n in LENGTHS]})


@pytest.mark.parametrize(
    ("mask", "rewards", "expected"),
    [
        ([1, 0, 0, 1], [0.0, 0.0, 0.0, 1.0], "a ⟦b c ⟧d "),
        ([1, 1, 1, 1], [0.0, 0.5, -0.25, 1.0], "a b (+0.5)c (-0.25)d "),
        ([0, 0, 1, 1], [0.5, 0.0, 0.0, 0.0], "⟦a ⟧(+0.5)⟦b ⟧c d "),
    ],
)
def test_a_response_is_marked_by_author_and_step_reward(mask, rewards, expected):
    from recipes.core.trainer import marked

    assert marked(lambda ids: "".join(f"{chr(96 + one)} " for one in ids), [1, 2, 3, 4], mask, rewards) == expected


def test_what_cannot_be_kept_of_shown_responses_ends_no_run(batch, tmp_path, monkeypatch, capsys):
    from types import SimpleNamespace

    from recipes.core import data_plane
    from recipes.core.trainer import SHOWN, DuetTrainer

    rows = dict.fromkeys(("responses", "response_mask", "rm_scores"), [torch.ones(3), torch.ones(1)])
    monkeypatch.setattr(data_plane, "read", lambda *_, **__: rows | {"raw_prompt": [[{"content": "1 + 1?"}]] * 2})
    config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir=tmp_path))
    trainer = SimpleNamespace(config=config, global_steps=3, tokenizer=SimpleNamespace(decode=str))
    (tmp_path / SHOWN).write_text('{"step": 1\n')
    DuetTrainer.show_responses(trainer, batch)
    assert "are not kept" in capsys.readouterr().out
    (tmp_path / SHOWN).unlink()
    DuetTrainer.show_responses(trainer, batch)
    assert len((tmp_path / SHOWN).read_text().splitlines()) == 2
