"""Readings with a partner: a whole evaluation against an engine of our own that follows a script."""

import json
from types import SimpleNamespace

import pytest

from recipes.errors import ConfigError, EnvironmentProblem
from recipes.evaluation import continuations, generation, partner_readings, presentation
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
    """A model whose continuation of a text is `script(text)`, and how many tokens it was allowed each time."""

    tokenizer, model_length = Letters(), 1000

    def __init__(self, script):
        self.script, self.asked = script, []

    def write(self, requests, sampling, on_done):
        for request in requests:
            text = self.tokenizer.decode(request.prompt)
            self.asked.append((text, request.max_tokens or sampling.max_tokens))
            written = self.script(text)
            sample = SampledResponse(request.key, 0, written, len(written), "stop")
            on_done(request.key, [sample])

    def write_parts(self, turns, sampling, separator):
        parts = []
        for turn in turns:
            whole = self.script(self.tokenizer.decode(turn.token_ids))
            head, found, _ = whole.partition(separator)
            parts.append(generation.handoff.Part(self.tokenizer.encode(head + found), not found))
        return parts

    def prompt_log_probs(self, token_ids):
        return [[None, *({one: -0.5} for one in ids[1:])] for ids in token_ids]


def senior(text):
    """Right on q0 and q1 in three sentences, without an answer on q2."""
    question, _, done = text.partition(":")
    whole = f"One. Two. \\boxed{{{GOLD[question]}}}" if question != "q2" else "I do not know."
    return whole.removeprefix(done) if whole.startswith(done) else "lost"


def junior(text):
    """Right where it is given two sentences; on q1 it says so only when it is asked for the answer."""
    question, _, done = text.partition(":")
    if done.endswith("Answer: "):
        return "\\boxed{5}"
    if "Two." not in done:
        return " \\boxed{0}"
    return " \\boxed{4}" if question == "q0" else " Well."


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Runs an evaluation with the scripted senior and junior; gives the summary and the junior's engine."""
    data = tmp_path / "toy.jsonl"
    data.write_text("".join(json.dumps({"question": f"{q}:", "answer": a}) + "\n" for q, a in GOLD.items()))
    engines = {"senior": Engine(senior), "junior": Engine(junior)}

    def load(self, spec, role):
        return engines["junior" if role == "partner" else spec.name]

    monkeypatch.setattr(generation.Generator, "_load", load)
    monkeypatch.setattr(generation, "model_folder", lambda path, merged: path)
    monkeypatch.setattr(partner_readings, "VllmEngine", lambda source, options: engines[source.rpartition("/")[2]])
    monkeypatch.setattr(presentation, "plot_comparison", lambda *arguments: None)

    def run(*overrides, folder="out"):
        arguments = [
            "models=[m/senior]",
            f"benchmarks=[{data}]",
            "prompt.chat_template=false",
            "grading.math.workers=1",
        ]
        arguments += ["partner.model=m/junior", "transfer.every=1", "transfer.forcing='Answer: '"]
        settings = read_settings(
            [*arguments, "transfer.forced_tokens=20", f"output_dir={tmp_path / folder}", *overrides]
        )
        return evaluate(settings)

    return SimpleNamespace(run=run, engines=engines, folder=tmp_path / "out")


def test_transfer_utility_of_right_responses_by_the_junior_alone(world):
    result = world.run("partner.readings=[transfer_utility,legibility]")["models"]["senior"]["toy"]
    # q0 and q1 were right: cuts at 0, 33.3 and 66.7 percent, of which the last is solved; q1 after it was asked.
    found = result["transfer_utility"]
    rows = [json.loads(line) for line in (world.folder / "senior" / "toy.transfer.jsonl").read_text().splitlines()]
    assert [(row["problem"], row["cuts"], row["right"]) for row in rows] == [
        (row["problem"], [0, 1, 2], [0.0, 0.0, 1.0]) for row in rows
    ]
    assert (found["traces"], found["alone"], found["never_right"], found["left_out"]) == (2, 0.0, 0, 0)
    # 0 up to a third, then linear, 1 from two thirds on: about a third of the bins and half of another.
    assert found["first_order"] == pytest.approx(0.5, abs=0.02)
    assert found["regression_rate"] == 0.0 and found["second_order"] == 0.0
    # Prefixes end without the space that belongs to the next word, and the last sentence is never given.
    asked = [text for text, _ in world.engines["junior"].asked]
    assert "q0:One. Two." in asked and not any("boxed{4}" in text for text in asked)
    assert sum(text.endswith("Answer: ") for text in asked) == 1, "only what has no answer is asked for it"
    assert result["legibility"]["nats_per_token"] == 0.5


def test_an_answer_in_the_prefix_does_not_count(world):
    world.engines["senior"].script = lambda text: "So \\boxed{4}. Well, \\boxed{4}" if text.startswith("q0") else "no"
    world.engines["junior"].script = lambda text: " nothing"
    found = world.run("partner.readings=[transfer_utility]")["models"]["senior"]["toy"]["transfer_utility"]
    assert (found["traces"], found["first_order"], found["never_right"]) == (1, 0.0, 1)
    assert "second_order" not in found


def test_a_second_run_takes_the_continuations_from_the_files(world):
    first = world.run("partner.readings=[transfer_utility]")
    world.engines["junior"].asked.clear()
    assert world.run("partner.readings=[transfer_utility]") == first
    assert world.engines["junior"].asked == []


def test_handoffs_stand_beside_solo_with_ratio_gap_and_tables(world, capsys):
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
    presentation.print_tables(summary)
    assert "Handoffs, in percent" in capsys.readouterr().out


def test_without_a_right_response_it_is_said_and_there_is_no_value(world, capsys):
    world.engines["senior"].script = lambda text: "no"
    summary = world.run("partner.readings=[sentence_handoff,transfer_utility]")
    result = summary["models"]["senior"]["toy"]["transfer_utility"]
    assert result == {"traces": 0, "left_out": 0}
    assert "transfer_utility of senior on toy has no value: no right response is finished" in capsys.readouterr().out
    assert summary["models"]["senior+sentence_handoff"]["toy"]["handoff_ratio"]["pass@1"] is None
    assert "| senior | toy | - | - | - | - | - | 0 |" in (world.folder / "summary.md").read_text()


def test_responses_that_leave_no_room_are_counted(world, capsys):
    world.engines["junior"].model_length = 45
    found = world.run("partner.readings=[transfer_utility]")["models"]["senior"]["toy"]["transfer_utility"]
    assert found == {"traces": 0, "left_out": 2}
    assert "2 responses are too long" in capsys.readouterr().out


@pytest.mark.parametrize("reading", ["legibility", "transfer_utility"])
def test_a_reading_that_fails_is_named_and_ends_the_evaluation(world, reading):
    def fail(*arguments):
        raise EnvironmentProblem("the endpoint answered HTTP 400")

    world.engines["junior"].write = world.engines["junior"].prompt_log_probs = fail
    with pytest.raises(EnvironmentProblem, match=f"{reading} of senior on toy: the endpoint answered HTTP 400"):
        world.run(f"partner.readings=[{reading}]")


def test_the_macro_average_of_a_reading_weighs_its_parts_alike():
    results = {
        name: {"transfer_utility": {"first_order": value, "alone": 0.0, "traces": traces}}
        for name, value, traces in (("a", 0.2, 1), ("b", 0.8, 3), ("c", 0.1, 50))
    }
    macro = {"parts": [["a", "b"], ["c"]], "metrics": {}}
    summary = {"models": {"m": results}, "macros": {"m": {"mine": macro}}}
    partner_readings.add_macros(summary)
    assert macro["transfer_utility"]["first_order"] == pytest.approx(((0.2 + 3 * 0.8) / 4 + 0.1) / 2)
    assert "legibility" not in macro


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["partner.readings=[legibility]"], "needs partner.model"),
        (["partner.model=a/b", "partner.readings=[charm]"], "expected some of sentence_handoff"),
        (["partner.model=a/b", "handoff.partner=c/d"], "leave handoff.partner"),
        (["partner.model={endpoint:'http://a/v1',model:m}"], "give its tokenizer="),
        (["partner.model={endpoint:'http://a/v1',model:m,tokenizer:t}"], "word_handoff: handoff.by=word"),
        (["partner.model=a/b", "engines=2"], "sentence_handoff: engines > 1"),
        (["transfer.sentence_end='('"], "is no pattern"),
        (["legibility.responses=0"], "legibility.responses"),
    ],
)
def test_what_cannot_be_read_is_refused(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_settings(["models=[m/n]", "benchmarks=[gsm8k]", *overrides])


def test_a_model_that_is_the_partner_has_no_handoff():
    settings = read_settings(["models=[a/b,c/d]", "benchmarks=[gsm8k]", "partner.model=a/b"])
    found = {spec.name: [name for name, _ in partner_readings.variants(spec, settings)] for spec in settings.models}
    assert found == {"b": ["b"], "d": ["d", "d+sentence_handoff", "d+word_handoff"]}
    assert [own.handoff.by for _, own in partner_readings.variants(settings.models[1], settings)[1:]] == [
        "separator",
        "word",
    ]


def test_a_tandem_engine_is_told_who_writes():
    request = generation.Request("k", [1], 77)
    body = generation.tandem_body("junior", None, request)
    assert json.loads(body["vllm_xargs"]["tandem"]) == {"selection_strategy": "junior"}
    word = json.loads(
        generation.tandem_body("senior", {"prob_own": 0.3, "max_gap_tokens": 9}, request)["vllm_xargs"]["tandem"]
    )
    assert word == {
        "selection_strategy": "word",
        "word_align": "after",
        "seed": 77,
        "prob_senior": 0.3,
        "max_gap_tokens": 9,
    }


def test_of_each_problem_the_first_right_finished_response_is_cut():
    samples = {
        problem: [SampledResponse(problem, i, f"{problem}{i}", 1, "length" if i == 1 else "stop") for i in range(3)]
        for problem in "ab"
    }
    graded = {problem: [SimpleNamespace(right=i > 0) for i in range(3)] for problem in "ab"}
    assert [one.sample for one in continuations.right_traces(samples, graded, 9).values()] == [2, 2]
    assert list(continuations.right_traces(samples, graded, 1)) == ["a"]
