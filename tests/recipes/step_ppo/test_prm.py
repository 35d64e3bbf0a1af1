"""The process reward model: one pass equals separate prefixes, training, export for the critic."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification, Qwen3Config, Qwen3ForCausalLM

from recipes.core.files import write_parquet
from recipes.step_ppo.calibration import calibration_error, correlation, expected_value, value_statistics
from recipes.step_ppo.labels import StateSampling, state_records
from recipes.step_ppo.pipeline import dpo, prm
from recipes.step_ppo.pipeline.data import Question, make_row
from recipes.step_ppo.pipeline.prm_model import (
    IGNORED,
    PRMExample,
    collate,
    export_backbone,
    load_prm,
    prm_examples,
    replayed,
    step_probabilities,
)
from recipes.step_ppo.pipeline.records import open_journal
from recipes.step_ppo.pipeline.training_run import last_complete_checkpoint
from recipes.step_ppo.steps import segment_response
from recipes.step_ppo.tokens import encode_prompt, encode_trajectory

sys.path.insert(0, str(Path(__file__).parent))
from trajectories import byte_level_tokenizer, random_trajectory, sentencepiece_like_tokenizer  # noqa: E402

PROMPT = "Context:\nall\n\nQuestion:\nwhich?\n\nOptions:\nA. a\n\nThought 1:"


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


def language_model(folder, tokenizer, layers=2, hidden=64):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, tokenizer):
    return language_model(tmp_path_factory.mktemp("lm"), tokenizer)


@pytest.fixture(scope="module")
def random_prm(model_folder):
    model = load_prm(model_folder, 4, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.3 if name.startswith("score") else 0.15, generator=generator)
    return model


def trajectories(tokenizer, count, seed=0):
    rng = random.Random(seed)
    found = []
    while len(found) < count:
        text = random_trajectory(rng).strip()
        ends = [step.end - 1 for step in segment_response(f" {text}")]
        if text and ends and ends[0] > 0:
            found.append(encode_trajectory(tokenizer, PROMPT, text, ends))
    return found


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_like_tokenizer])
def test_prompt_and_response_meet_on_a_token_border(make):
    tokenizer = make()
    encoded = encode_trajectory(tokenizer, PROMPT, "so it follows\nAction 1: look", [13])
    assert encoded.ids[: encoded.prompt_length] == encode_prompt(tokenizer, PROMPT)
    assert tokenizer.decode(encoded.ids[encoded.prompt_length :]).lstrip() == "so it follows\nAction 1: look"
    assert (encoded.ids[0] == tokenizer.bos_token_id) == (tokenizer.bos_token_id is not None)
    through_the_end = tokenizer.decode(encoded.ids[encoded.prompt_length : encoded.ends[0] + 1])
    assert through_the_end.strip() == "so it follows"


def test_a_prompt_that_merges_with_its_response_is_refused():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    merging = Tokenizer(models.BPE({":": 0, " ": 1, "s": 2, ": ": 3}, [(":", " ")]))
    with pytest.raises(ValueError, match="merges the end of the prompt"):
        encode_trajectory(PreTrainedTokenizerFast(tokenizer_object=merging), "s:", "s", [1])


def test_one_pass_equals_one_pass_per_prefix(random_prm, tokenizer):
    encoded = trajectories(tokenizer, 40)
    together = step_probabilities(random_prm, encoded, pad_token_id=tokenizer.pad_token_id, batch_size=7)
    worst, compared = 0.0, 0
    for trajectory, table in zip(encoded, together, strict=True):
        for end, row in zip(trajectory.ends, table, strict=True):
            with torch.no_grad():
                alone = random_prm(input_ids=torch.tensor([trajectory.ids[: end + 1]])).logits[0, -1].softmax(-1)
            worst = max(worst, (alone - row).abs().max().item())
            compared += 1
    assert compared > 150 and worst < 1e-5, worst
    assert torch.cat(together).std(dim=0).min() > 0.01


def test_batches_do_not_matter(random_prm, tokenizer):
    encoded = trajectories(tokenizer, 9, seed=4)
    one = step_probabilities(random_prm, encoded, pad_token_id=0, batch_size=1)
    nine = step_probabilities(random_prm, encoded, pad_token_id=0, batch_size=9)
    for a, b in zip(one, nine, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_the_head_has_k_plus_1_classes_no_bias_no_dropout(random_prm, model_folder, tmp_path):
    assert random_prm.score.out_features == 4 and random_prm.dropout.p == 0.0
    assert not random_prm.score.bias.requires_grad and random_prm.score.bias.abs().max() == 0
    random_prm.save_pretrained(tmp_path)
    again = load_prm(str(tmp_path))
    torch.testing.assert_close(again.score.weight, random_prm.score.weight)
    with pytest.raises(ValueError, match="4 classes, not 6"):
        load_prm(str(tmp_path), 6)
    with pytest.raises(ValueError, match="no process reward model"):
        load_prm(model_folder)


def test_backbone_export_takes_a_fresh_value_head(random_prm, tokenizer, tmp_path):
    random_prm.save_pretrained(tmp_path / "prm")
    tokenizer.save_pretrained(tmp_path / "prm")
    export_backbone(str(tmp_path / "prm"), str(tmp_path / "backbone"))
    critic, report = AutoModelForTokenClassification.from_pretrained(
        tmp_path / "backbone", num_labels=1, output_loading_info=True
    )
    assert critic.score.out_features == 1
    assert {name.partition(".")[0] for name in report["missing_keys"]} == {"score"} and not report["unexpected_keys"]
    for name, weight in random_prm.base_model.state_dict().items():
        torch.testing.assert_close(critic.base_model.state_dict()[name], weight)


# Examples


def toy_world(count=30):
    """Questions whose fate is decided in the first step, and with it the value of every state."""
    rng = random.Random(0)
    questions, trajectories_, values = {}, [], []
    for i in range(count):
        key = str(i)
        questions[key] = Question(key, PROMPT, "A", "toy", "react")
        responses = []
        for k in range(3):
            good = rng.random() < 0.5
            word = "careful" if good else "fails"
            finish = f"Action 1: Finish[The answer is {'A' if good else 'B'}.]"
            text = f"the premise is {word}\nObservation 1: so it {word} again\n{finish}"
            responses.append({"text": text, "correct": good, "sample": k, "reason": ""})
        record = {"key": key, "id": key, "responses": responses, "dropped": {}}
        trajectories_.append(record)
        for state in state_records(record, StateSampling(ratio=1.0, ratio_s=0.0), seed=0):
            good = "careful" in state["prefix"]
            values.append(
                {**{n: state[n] for n in ("key", "id", "response_index", "step", "kind")}, "value": 3 if good else 0,
                 "reason": "", "num_completions": 3, "prefix_length": len(state["prefix"])}
            )  # fmt: skip
    return questions, trajectories_, values


def test_examples_join_states_and_whole_trajectories():
    questions, trajectories_, values = toy_world(4)
    values[0]["value"] = None
    examples = list(prm_examples(questions, trajectories_, values, num_completions=3))
    assert [e.key for e in examples] == [f"{i}/{k}" for i in range(4) for k in range(3)]
    first, second = examples[:2]
    whole = 3 if trajectories_[0]["responses"][0]["correct"] else 0
    assert first.labels == ((len(first.response), whole),)
    assert len(second.labels) == 2 and second.labels[0][1] == second.labels[1][1]
    without = list(prm_examples(questions, trajectories_, values, num_completions=3, whole_trajectories=False))
    assert len(without) == 11 and all(len(e.labels) == 1 for e in without)


def test_questions_without_a_valued_state_are_no_examples():
    questions, trajectories_, values = toy_world(4)
    kept = [value for value in values if value["id"] != "2"]
    assert {e.id for e in prm_examples(questions, trajectories_, kept, num_completions=3)} == {"0", "1", "3"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_completions": 5}, "5 completions, not 3"),
        ({"value": 4}, "has 4 hits of 3 completions"),
        ({"prefix_length": 10_000}, "ends at no line"),
        ({"prefix_length": 1}, "ends at no line"),
    ],
)
def test_values_that_do_not_belong_to_the_trajectories_are_refused(changes, fault):
    questions, trajectories_, values = toy_world(2)
    with pytest.raises(ValueError, match="question 1, which the data does not hold"):
        list(prm_examples({"0": questions["0"]}, trajectories_, values, num_completions=3))
    values[0] |= changes
    with pytest.raises(ValueError, match=fault):
        list(prm_examples(questions, trajectories_, values, num_completions=3))


def test_replay_takes_a_share():
    examples = [PRMExample(str(i), str(i), "", "", ()) for i in range(50)]
    assert len(replayed(examples, 0.1, 0)) == 5
    assert replayed(examples, 0.1, 0) == replayed(examples, 0.1, 0) != replayed(examples, 0.1, 1)
    assert replayed(examples, 0.0, 0) == [] and len(replayed(examples[:3], 0.1, 0)) == 1
    assert replayed(examples, 1.0, 0) == examples
    with pytest.raises(ValueError, match="fraction"):
        replayed(examples, 1.1, 0)


def test_labels_stand_on_the_last_token_of_their_prefix(tokenizer):
    example = PRMExample("k", "k", PROMPT, "so it follows\nAction 1: look it up", ((13, 2), (34, 0)))
    rows, lost = prm.encode_examples(tokenizer, [example], 4096)
    places = [i for i, label in enumerate(rows[0]["labels"]) if label != IGNORED]
    assert [rows[0]["labels"][i] for i in places] == [2, 0] and places[-1] == len(rows[0]["input_ids"]) - 1
    assert tokenizer.decode(rows[0]["input_ids"][: places[0] + 1]).rstrip().endswith("so it follows") and lost == 0
    rows, lost = prm.encode_examples(tokenizer, [example], places[0] + 1)
    assert lost == 1 and [label for label in rows[0]["labels"] if label != IGNORED] == [2]
    rows, lost = prm.encode_examples(tokenizer, [example], 3)
    assert rows == [] and lost == 2


def test_the_loss_does_not_depend_on_micro_batches(random_prm, tokenizer):
    """Prefixes weigh the same whatever trajectories share their micro-batch."""
    rng = random.Random(5)
    rows = []
    for trajectory in trajectories(tokenizer, 6, seed=6):
        labels = [IGNORED] * len(trajectory.ids)
        for end in trajectory.ends:
            labels[end] = rng.randint(0, 3)
        rows.append({"input_ids": trajectory.ids, "labels": labels})
    count = sum(label != IGNORED for row in rows for label in row["labels"])

    def gradient(groups):
        random_prm.zero_grad()
        for group in groups:
            batch = collate(group, 0)
            prm.prefix_loss(random_prm(batch["input_ids"], batch["attention_mask"]), batch["labels"], count).backward()
        return random_prm.score.weight.grad.clone()

    torch.testing.assert_close(gradient([rows]), gradient([rows[:1], rows[1:3], rows[3:]]), atol=1e-6, rtol=1e-4)


def write_world(folder, count, **journals):
    """The questions of `toy_world` as p.parquet, and records as NAME.jsonl."""
    rows = [make_row(PROMPT, "A", i, "train", data_source="toy", style="react") for i in range(count)]
    write_parquet(folder / "p.parquet", rows)
    for name, records in journals.items():
        with open_journal(folder / f"{name}.jsonl") as journal:
            journal.extend(records)


def test_training_learns_and_resumes(tmp_path, tokenizer, model_folder, capsys):
    questions, trajectories_, values = toy_world(30)
    train, dev = [v for v in values if int(v["id"]) < 20], [v for v in values if int(v["id"]) >= 20]
    write_world(tmp_path, 30, t=trajectories_, train=train, dev=dev)
    command = [
        "--data", str(tmp_path / "p.parquet"), "--trajectories", str(tmp_path / "t.jsonl"),
        "--values", str(tmp_path / "train.jsonl"), "--dev-values", str(tmp_path / "dev.jsonl"),
        "--model", model_folder, "--learning-rate", "3e-3", "--warmup-steps", "2", "--accumulation", "1",
        "--batch-size", "8", "--max-steps", "24", "--save-steps", "10", "--export-backbone",
    ]  # fmt: skip
    out = tmp_path / "prm"
    prm.main([*command, "--output", str(out)])
    written = json.loads((out / "finished.json").read_text())["statistics"]
    assert written["train_prefixes"] == 20 * 3 * 2
    assert written["dev_accuracy"] > 0.9 and written["dev_correlation"] > 0.8 and written["dev_count"] == 60
    assert load_prm(str(out)).config.num_labels == 4 and (out / "backbone" / "config.json").is_file()
    prm.main([*command, "--output", str(out)])
    assert "already trained" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="other options"):
        prm.main([*command, "--output", str(out), "--seed", "9"])
    # A run that was killed while it wrote its second checkpoint goes on from the first, to the same weights.
    (out / "finished.json").unlink()
    before = load_prm(str(out)).score.weight
    (out / "checkpoint-20" / "trainer_state.json").unlink()
    assert last_complete_checkpoint(str(out)).endswith("checkpoint-24")
    (out / "checkpoint-24" / "trainer_state.json").unlink()
    assert last_complete_checkpoint(str(out)) is None
    prm.main([*command, "--output", str(out)])
    torch.testing.assert_close(load_prm(str(out)).score.weight, before)


def pairs_and_options(folder, n):
    """Write n pairs, of a question each; the options of a DPO on them."""
    pytest.importorskip("trl")
    pairs = [dict(key=i, id=i, kind="positive", chosen=f"so {i}.", reject=f"no {i}?") for i in map(str, range(n))]
    write_world(folder, n, pairs=pairs)
    return ["--pairs", str(folder / "pairs.jsonl"), "--no-gradient-checkpointing"]


def test_dpo_moves_weights_by_less_than_bfloat16_resolves(tmp_path, model_folder):
    command = ["--data", str(tmp_path / "p.parquet"), "--model", model_folder, *pairs_and_options(tmp_path, 4)]
    command += ["--learning-rate", "2e-6", "--max-steps", "1", "--warmup-steps", "0", "--output", str(tmp_path / "o")]
    dpo.main(command)
    start, made = (load_file(Path(folder) / "model.safetensors") for folder in (model_folder, tmp_path / "o"))
    assert all(w.dtype == torch.float32 and (start[name] != w).float().mean() > 0.5 for name, w in made.items())


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", ["prm", "dpo"])
def test_sigkill_while_training(stage, tmp_path, model_folder):
    """Killed twice between checkpoints, run again: the weights of an uninterrupted training."""
    command = ["--data", str(tmp_path / "p.parquet"), "--model", model_folder, "--warmup-steps", "2"]
    command += ["--accumulation", "1", "--max-steps", "60", "--save-steps", "10"]
    if stage == "prm":
        _, trajectories_, values = toy_world(30)
        write_world(tmp_path, 30, t=trajectories_, v=values)
        command += ["--trajectories", str(tmp_path / "t.jsonl"), "--values", str(tmp_path / "v.jsonl")]
        command += ["--learning-rate", "3e-3", "--batch-size", "8", "--output"]
    else:
        command += [*pairs_and_options(tmp_path, 24), "--learning-rate", "1e-3", "--batch-size", "4", "--output"]
    main = {"prm": prm, "dpo": dpo}[stage].main
    main([*command, str(tmp_path / "whole")])
    out = tmp_path / "killed"
    for checkpoint in (10, 30):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        child = subprocess.Popen(
            [sys.executable, "-m", f"recipes.step_ppo.pipeline.{stage}", *command, str(out)], env=environment
        )
        while child.poll() is None and not (out / f"checkpoint-{checkpoint}" / "trainer_state.json").is_file():
            time.sleep(0.002)
        child.kill()
        assert child.wait() == -signal.SIGKILL and not (out / "finished.json").exists()
    main([*command, str(out)])
    start, made, wanted = (
        load_file(Path(folder) / "model.safetensors") for folder in (model_folder, out, tmp_path / "whole")
    )
    assert made.keys() == wanted.keys() and all(made[name].equal(wanted[name]) for name in wanted)
    assert any(not start[name].equal(wanted[name]) for name in wanted if name in start)


def test_shared_questions_are_refused(tmp_path, model_folder):
    questions, trajectories_, values = toy_world(3)
    write_world(tmp_path, 3, t=trajectories_, v=values, d=values[:1])
    with pytest.raises(SystemExit, match="both in"):
        prm.main(
            ["--data", str(tmp_path / "p.parquet"), "--trajectories", str(tmp_path / "t.jsonl"), "--values",
             str(tmp_path / "v.jsonl"), "--dev-values", str(tmp_path / "d.jsonl"), "--model", model_folder,
             "--output", str(tmp_path / "o")]
        )  # fmt: skip


def test_every_process_evaluates_all_held_out_rows(random_prm, tokenizer):
    """Rank 0 alone would wait for the others in a sharded model, and its loader gives it a part of the rows only."""
    rows = [
        {"input_ids": t.ids, "labels": [1 if i in t.ends else IGNORED for i in range(len(t.ids))]}
        for t in trajectories(tokenizer, 5, seed=3)
    ]
    trainer = SimpleNamespace(
        model=random_prm,
        args=SimpleNamespace(eval_batch_size=2, device=torch.device("cpu")),
        data_collator=lambda batch: collate(batch, tokenizer.pad_token_id),
        is_world_process_zero=lambda: False,
    )
    found = prm.evaluate(trainer, rows)
    encoded = trajectories(tokenizer, 5, seed=3)
    tables = torch.cat(step_probabilities(random_prm, encoded, pad_token_id=tokenizer.pad_token_id))
    assert found["count"] == sum(len(t.ends) for t in encoded) == len(tables)
    assert found["cross_entropy"] == pytest.approx(-tables[:, 1].log().mean().item(), abs=1e-4)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_processes_hold_out_what_one_does(tmp_path, model_folder):
    _, trajectories_, values = toy_world(12)
    train, dev = [v for v in values if int(v["id"]) < 8], [v for v in values if int(v["id"]) >= 8]
    write_world(tmp_path, 12, t=trajectories_, train=train, dev=dev)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        "-m", "recipes.step_ppo.pipeline.prm", "--data", str(tmp_path / "p.parquet"),
        "--trajectories", str(tmp_path / "t.jsonl"), "--values", str(tmp_path / "train.jsonl"),
        "--dev-values", str(tmp_path / "dev.jsonl"), "--model", model_folder, "--output", str(tmp_path / "prm"),
        "--max-steps", "1", "--warmup-steps", "0", "--accumulation", "1", "--dtype", "float32",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "prm" / "finished.json").read_text())["statistics"]["dev_count"] == 4 * 3 * 2


def test_constant_values_have_no_correlation():
    """Rounding gives most constants a variance of their own."""
    for n, dtype in ((3, torch.float64), (7, torch.float32), (100, torch.float32)):
        for value in (0.1, 1 / 3, 0.7):
            sides = torch.full((n,), value, dtype=dtype), torch.full((n,), 1 / 3, dtype=dtype)
            assert correlation(*sides) == 0.0 and correlation(sides[0], torch.rand(n, dtype=dtype)) == 0.0


def test_value_statistics():
    probabilities = torch.tensor([[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    torch.testing.assert_close(expected_value(probabilities), torch.tensor([1.0, 0.0, 0.5]))
    found = value_statistics(probabilities, torch.tensor([3, 0, 2]))
    assert found["accuracy"] == pytest.approx(2 / 3) and found["count"] == 3
    assert found["cross_entropy"] == pytest.approx(1.3862944 / 3, abs=1e-5)
    assert found["correlation"] == pytest.approx(0.98198, abs=1e-4)
    assert found["calibration_error"] == pytest.approx((2 / 3 - 0.5) / 3, abs=1e-6)
    assert value_statistics(probabilities[:1], torch.tensor([3]))["correlation"] == 0.0
    assert calibration_error(torch.tensor([0.95, 1.0]), torch.tensor([1.0, 0.9])) == pytest.approx(0.025, abs=1e-6)
    with pytest.raises(ValueError, match="no labelled"):
        value_statistics(probabilities[:0], torch.tensor([]))
