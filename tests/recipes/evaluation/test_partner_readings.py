"""Readings with a partner: a whole evaluation against an engine of our own that follows a script."""

import json
from types import SimpleNamespace

import pytest

from recipes.errors import EnvironmentProblem
from recipes.evaluation import engines, generate, partner
from recipes.evaluation.main import evaluate
from recipes.evaluation.sample_store import SampledResponse
from recipes.evaluation.settings import read_settings

GOLD = {"q0": "4", "q1": "5", "q2": "6"}


class Letters:
    """A tokenizer whose tokens are characters."""

    bos_token_id = None

    def encode(self, text, add_special_tokens=False):
        return [ord(letter) for letter in text]

    def decode(self, ids, skip_special_tokens=True):
        return "".join(map(chr, ids))

    def get_vocab(self):
        return {}


class Engine:
    """A model whose continuation of a text is `script(text)`."""

    tokenizer, model_length = Letters(), 1000

    def __init__(self, script):
        self.script = script

    def write(self, requests, sampling, on_done):
        for request in requests:
            written = self.script(self.tokenizer.decode(request.prompt))
            sample = SampledResponse(request.key, 0, written, len(written), "stop")
            on_done(request.key, [sample])

    def write_parts(self, turns, sampling, separator):
        parts = []
        for turn in turns:
            whole = self.script(self.tokenizer.decode(turn.token_ids))
            head, found, _ = whole.partition(separator)
            parts.append(engines.Part(self.tokenizer.encode(head + found), not found))
        return parts

    def prompt_log_probs(self, token_ids):
        return [[None, *({one: -0.5} for one in ids[1:])] for ids in token_ids]


def senior(text):
    """Right on q0 and q1 in three sentences, without an answer on q2."""
    question, _, done = text.partition(":")
    whole = f"One. Two. \\boxed{{{GOLD[question]}}}" if question != "q2" else "I do not know."
    return whole.removeprefix(done) if whole.startswith(done) else "lost"


def junior(text):
    """Wrong or without an answer, whatever it goes on from."""
    return " Well." if "Two." in text else " \\boxed{0}"


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Runs an evaluation with the scripted senior and junior; gives the summary and the junior's engine."""
    data = tmp_path / "toy.jsonl"
    data.write_text("".join(json.dumps({"question": f"{q}:", "answer": a}) + "\n" for q, a in GOLD.items()))
    engines = {"senior": Engine(senior), "junior": Engine(junior)}

    def load(self, spec, role):
        return engines["junior" if role == "partner" else spec.name]

    monkeypatch.setattr(generate.Generator, "_load", load)
    monkeypatch.setattr(generate, "model_folder", lambda path, merged: path)
    monkeypatch.setattr(partner, "VllmEngine", lambda source, options: engines[source.rpartition("/")[2]])

    def run(*overrides, folder="out"):
        arguments = [
            "models=[m/senior]",
            f"benchmarks=[{data}]",
            "prompt.chat_template=false",
            "grading.math.workers=1",
        ]
        arguments += ["partner.model=m/junior", f"output_dir={tmp_path / folder}"]
        settings = read_settings([*arguments, *overrides])
        return evaluate(settings)

    return SimpleNamespace(run=run, engines=engines, folder=tmp_path / "out")


def test_handoffs_stand_beside_solo_with_ratio_gap_and_tables(world):
    summary = world.run("partner.readings=[sentence_handoff]", "handoff.separator='. '", "macro={all: [toy]}")
    models = summary["models"]
    assert set(models) == {"senior", "senior+sentence_handoff"}
    # The junior's turn after the first sentence ends each response with a wrong answer or none.
    assert models["senior"]["toy"]["metrics"]["pass@1"]["mean"] == pytest.approx(2 / 3)
    joint = models["senior+sentence_handoff"]["toy"]
    assert joint["metrics"]["pass@1"]["mean"] == 0.0
    assert (joint["handoff_ratio"]["pass@1"], joint["handoff_gap"]["pass@1"]) == (0.0, pytest.approx(2 / 3))
    assert summary["macros"]["senior+sentence_handoff"]["all"]["handoff_ratio"]["pass@1"] == 0.0
    text = (world.folder / "summary.md").read_text()
    assert "| senior | toy | pass@1 | 66.67 | 0.00 | 0.000 | +66.67 |" in text
    assert "| senior | macro all | pass@1 | 66.67 | 0.00 | 0.000 | +66.67 |" in text
    assert "Handoffs, in percent:" in text


def test_a_ratio_to_nothing_is_unknown_and_no_zero(world):
    world.engines["senior"].script = lambda text: "no"
    summary = world.run("partner.readings=[sentence_handoff]")
    assert summary["models"]["senior+sentence_handoff"]["toy"]["handoff_ratio"]["pass@1"] is None
    assert "| senior | toy | pass@1 | 0.00 | 0.00 | - | +0.00 |" in (world.folder / "summary.md").read_text()


def test_legibility_of_what_the_partner_can_read(world, capsys):
    assert world.run("partner.readings=[legibility]")["models"]["senior"]["toy"]["legibility"]["nats_per_token"] == 0.5
    assert "| senior | toy | 0.500 |" in (world.folder / "summary.md").read_text()
    world.engines["junior"].model_length = 10
    summary = world.run("partner.readings=[legibility]")
    assert summary["models"]["senior"]["toy"]["legibility"] == {"tokens": 0, "responses_left_out": 3}
    assert "legibility of senior on toy has no value: 3 responses" in capsys.readouterr().out


def test_two_models_are_compared_in_the_table(world):
    world.run("models=[m/senior,m/junior]", "partner.readings=[legibility]")
    assert "| senior | junior | toy | pass@1 | -66.67 [" in (world.folder / "summary.md").read_text()


def test_a_reading_that_fails_is_named_and_ends_the_evaluation(world):
    def fail(*arguments):
        raise EnvironmentProblem("the endpoint answered HTTP 400")

    world.engines["junior"].prompt_log_probs = fail
    with pytest.raises(EnvironmentProblem, match="legibility of senior on toy: the endpoint answered HTTP 400"):
        world.run("partner.readings=[legibility]")


def test_the_macro_average_of_a_reading_weighs_its_parts_alike():
    results = {
        name: {"legibility": {"nats_per_token": value, "tokens": tokens}}
        for name, value, tokens in (("a", 0.2, 1), ("b", 0.8, 3), ("c", 0.1, 50))
    }
    results["d"] = {}
    macros = {
        name: {"parts": parts, "metrics": {}} for name, parts in {"all": [["a", "b"], ["c"]], "d": [["d"]]}.items()
    }
    partner.add_macros({"models": {"m": results}, "macros": {"m": macros}})
    assert macros["all"]["legibility"]["nats_per_token"] == pytest.approx(((0.2 + 3 * 0.8) / 4 + 0.1) / 2)
    assert "legibility" not in macros["d"]


def test_a_model_that_is_the_partner_has_no_handoff():
    settings = read_settings(["models=[a/b,c/d]", "benchmarks=[gsm8k]", "partner.model=a/b"])
    assert {spec.name: partner.variants(spec, settings) for spec in settings.models} == {
        "b": [("b", None)],
        "d": [("d", None), ("d+sentence_handoff", "sentence_handoff"), ("d+word_handoff", "word_handoff")],
    }


def test_a_tandem_engine_is_told_who_writes():
    request = generate.Request("k", [1], 77)
    body = generate.tandem_body("junior", None, request)
    assert json.loads(body["vllm_xargs"]["tandem"]) == {"selection_strategy": "junior"}
    word = json.loads(
        generate.tandem_body("senior", {"prob_own": 0.3, "max_gap_tokens": 9}, request)["vllm_xargs"]["tandem"]
    )
    assert word == {
        "selection_strategy": "word",
        "word_align": "after",
        "seed": 77,
        "prob_senior": 0.3,
        "max_gap_tokens": 9,
    }
