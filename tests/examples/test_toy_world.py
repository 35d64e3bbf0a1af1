"""Building a toy world: whole or not at all, again only when something changed, the same from the same seed."""

import json
import sys
import textwrap

import pandas as pd
import pytest
import torch
from toy_world import build as build_module
from toy_world import starts
from toy_world import warm_up as warm_up_module
from toy_world.build import ToyWorldError, build
from toy_world.formats import FORMATS, Example, Split, arithmetic, load_format
from toy_world.formats import serl as serl_format
from toy_world.tokenizer import train_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

# Learned in a few updates, so that a whole build takes seconds.
PARROT = """
    from toy_world.formats import Example, Split

    DATA_SOURCE, ABILITY, BAND, MAX_RESPONSE_TOKENS = "toy_parrot", "echo", ({low}, {high}), 8

    def split(seed):
        words = ["red", "blue", "green", "black", "white"]
        examples = [
            Example([{{"role": "user", "content": f"Say yes to {{a}} {{b}} {{seed}}."}}], "yes", "yes", {{"first": a}})
            for a in words for b in words
        ]
        return Split(examples[:20], examples[20:])

    def grade(response, ground_truth):
        return response == ground_truth
"""


@pytest.fixture
def parrot(tmp_path, monkeypatch):
    folder = tmp_path / "formats"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two parrots may have one size and one second

    def write(low=0.5, high=1.0):
        (folder / "parrot.py").write_text(textwrap.dedent(PARROT.format(low=low, high=high)))
        sys.modules.pop("parrot", None)

    monkeypatch.setitem(FORMATS, "parrot", "parrot")
    write()
    yield write
    sys.modules.pop("parrot", None)


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_shuffled_labels_are_the_same_labels_elsewhere(tmp_path, parrot, monkeypatch):
    monkeypatch.setattr(build_module, "warmed_up_model", lambda *_: {"accuracy": 1.0})
    examples = [Example([{"role": "user", "content": f"Say {n}."}], str(n), str(n)) for n in range(20)]
    monkeypatch.setattr(load_format("parrot"), "split", lambda seed: Split(examples, examples[:5]))
    build(tmp_path / "world", format_name="parrot", seed=0)
    rows, control = (pd.read_parquet(tmp_path / "world" / f"{name}.parquet") for name in ("train", "train_shuffled"))
    labels, others = ([one["ground_truth"] for one in table["reward_model"]] for table in (rows, control))
    assert sorted(labels) == sorted(others) and labels != others
    assert [list(one) for one in rows["prompt"]] == [list(one) for one in control["prompt"]]


def test_a_world_holds_what_verl_reads(tmp_path, parrot):
    out = tmp_path / "world"
    world = build(out, format_name="parrot", seed=0, shapes=("slim", "base"))
    assert json.loads((out / "world.json").read_text()) == world
    assert (world["train"], world["test"]) == (20, 5)

    rows = pd.read_parquet(out / "test.parquet")
    assert list(rows.columns) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    row = rows.iloc[1]
    assert row["prompt"][0] == {"role": "user", "content": "Say yes to white blue 0."}
    assert row["reward_model"] == {"style": "rule", "ground_truth": "yes"}
    assert (
        row["extra_info"]["split"] == "test"
        and row["extra_info"]["index"] == 1
        and row["extra_info"]["first"] == "white"
    )

    for name in ("model", "model_base"):
        tokenizer = AutoTokenizer.from_pretrained(out / name)
        model = AutoModelForCausalLM.from_pretrained(out / name)
        assert model.config.vocab_size == len(tokenizer) == world["vocabulary"]
        assert model.config.head_dim == 32
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id
        assert {value.dtype for value in model.state_dict().values()} == {torch.float32}


def test_a_standing_world_is_left_alone_until_its_content_key_changes(tmp_path, parrot):
    out = tmp_path / "world"
    first = build(out, format_name="parrot")
    made = (out / "model" / "model.safetensors").stat().st_mtime_ns
    assert build(out, format_name="parrot") == first
    assert (out / "model" / "model.safetensors").stat().st_mtime_ns == made

    parrot(low=0.6)
    assert build(out, format_name="parrot")["key"] != first["key"]
    assert (out / "model" / "model.safetensors").stat().st_mtime_ns != made


def test_same_seed_same_weights_other_seed_others(tmp_path, parrot):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build(tmp_path / name, format_name="parrot", seed=seed)
    a, b, c = (weights(tmp_path / name / "model") for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not all(torch.equal(a[key], c[key]) for key in a if a[key].shape == c[key].shape)


def test_a_missed_band_leaves_the_old_world_and_nothing_half_made(tmp_path, parrot):
    out = tmp_path / "world"
    world = build(out, format_name="parrot")
    parrot(low=0.1, high=0.2)
    with pytest.raises(ToyWorldError, match="expected 10% to 20%"):
        build(out, format_name="parrot")
    assert json.loads((out / "world.json").read_text()) == world
    assert sorted(path.name for path in tmp_path.iterdir()) == ["formats", "world"]


def test_a_killed_build_leaves_no_world(tmp_path, parrot, monkeypatch):
    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(build_module, "warm_up", killed)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "world", format_name="parrot")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["formats"]


def test_someone_elses_folder_is_not_overwritten(tmp_path, parrot):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ToyWorldError, match="no toy world"):
        build(tmp_path, format_name="parrot")
    assert (tmp_path / "thesis.txt").exists()


@pytest.fixture(scope="module")
def tokenizer():
    split = arithmetic.split(seed=0)
    texts = [example.prompt[0]["content"] for example in split.train] + [example.response for example in split.train]
    return train_tokenizer([*texts, "user\n", "assistant\n"], 512)


def test_words_lead_with_their_space_and_digits_stand_alone(tokenizer):
    surfaces = tokenizer.convert_ids_to_tokens(tokenizer("There are 251 + 8 = 259 coins.")["input_ids"])
    assert surfaces == ["There", "Ġare", "Ġ", *"251", "Ġ+", "Ġ", "8", "Ġ=", "Ġ", *"259", "Ġcoins", "."]


@pytest.mark.parametrize("text", ["There are 3 coins. \\boxed{3}", "Grüße, 世界 🎲\n\n  two  spaces", "", "<|im_end|>"])
def test_any_text_survives_encoding(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_chat_template_ends_every_turn_with_the_end_token(tokenizer):
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "There"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nThere<|im_end|>\n"
    )
    asked = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
    assert asked.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize("format_name", ["arithmetic", "pasodoble", "serl", "step_ppo"])
def test_no_toy_is_trained_where_its_start_is_kept(tmp_path, monkeypatch, format_name):
    """After a change of their sources: `TOY_TRAIN=1 python examples/toy/make.py --force` of each format."""
    monkeypatch.setattr(warm_up_module, "_warm_up", lambda *arguments: pytest.fail("a start is out of date"))
    monkeypatch.setattr(serl_format, "teach", lambda *arguments: pytest.fail("the start of serl is out of date"))
    report = build(tmp_path / "world", format_name=format_name)["models"]["base"]
    toy_format = load_format(format_name)
    low, high = getattr(toy_format, "TAUGHT_BAND", toy_format.BAND)
    assert low <= report["accuracy"] <= high
    if format_name == "arithmetic":
        model, tokenizer = (
            kind.from_pretrained(tmp_path / "world/model") for kind in (AutoModelForCausalLM, AutoTokenizer)
        )
        test = arithmetic.split(0).test
        found = warm_up_module.greedy_accuracy(model, tokenizer, test, arithmetic.grade, arithmetic.MAX_RESPONSE_TOKENS)
        assert found.graded == pytest.approx(report["accuracy"], abs=0.01)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_arithmetic_world_ends_in_its_band(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(starts, "KEPT", tmp_path / "none")
    world = build(tmp_path / "world", seed=seed)
    report = world["models"]["base"]
    assert 0.20 <= report["accuracy"] <= 0.35
    assert report["finished"] >= 0.95
    assert 300_000 <= report["parameters"] <= 700_000
