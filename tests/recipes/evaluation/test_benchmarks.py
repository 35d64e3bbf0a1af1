"""Benchmarks, prompts, settings and files around them."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from recipes.errors import CheckpointError, ConfigError, DataError, MissingFileError
from recipes.evaluation import benchmarks, prompts, reclor
from recipes.evaluation.checkpoint import model_folder
from recipes.evaluation.main import main
from recipes.evaluation.prompts import PromptOptions
from recipes.evaluation.sample_store import SampledResponse
from recipes.evaluation.settings import problem_seed, read_settings

PUBLISHED = (Path(benchmarks.__file__).parent / "config" / "protocol" / "published").glob("*.yaml")


def published_protocol(name):
    return yaml.safe_load((Path(benchmarks.__file__).parent / f"config/protocol/published/{name}.yaml").read_text())


def write_jsonl(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture
def questions(tmp_path):
    rows = [{"problem": f"What is {n}+{n}?", "answer": str(2 * n), "level": n % 2} for n in range(4)]
    return write_jsonl(tmp_path / "sums.jsonl", rows)


def test_a_benchmark_that_others_grade_is_refused_with_their_name():
    with pytest.raises(ConfigError, match="lm-evaluation-harness"):
        benchmarks.load("ifeval")


@pytest.mark.parametrize("name", benchmarks.benchmark_names())
def test_a_benchmark_is_pinned_or_says_that_it_is_not(name):
    source = benchmarks.describe(name)["source"]
    if not benchmarks.has_public_source(source):
        with pytest.raises(ConfigError) as refused:
            benchmarks.load(name)
        assert refused.value.key == f"data.{name}"
    elif not (source.get("revision") or re.search(r"/[0-9a-f]{40}/", source.get("url", ""))):
        assert "no revision is pinned" in source["note"]


def test_every_benchmark_takes_a_local_copy():
    settings = read_settings(["models=[m]", "benchmarks=[gsm8k]"])
    assert settings.data.keys() - {"mmlu_pro_shots"} == set(benchmarks.benchmark_names())


@pytest.mark.parametrize("protocol", ["default", *sorted(f"published/{path.stem}" for path in PUBLISHED)])
def test_every_protocol_composes_and_gives_way_to_what_is_set(protocol):
    overrides = [f"protocol={protocol}", "models=[m]", "benchmarks=[math_500]", "engine.max_model_len=256"]
    settings = read_settings(overrides)
    assert settings.note and settings.engine["max_model_len"] == 256


def test_a_local_file_is_a_benchmark(questions):
    loaded = benchmarks.load(str(questions))
    assert (loaded.name, loaded.kind, len(loaded.problems)) == ("sums", "math", 4)
    assert loaded.problems[3].question == "What is 3+3?"
    assert [problem.id for problem in loaded.problems] == ["0", "1", "2", "3"]
    assert benchmarks.load(str(questions), limit=2).fingerprint != loaded.fingerprint


def test_verls_parquet_is_a_benchmark(tmp_path):
    row = {"prompt": [{"role": "user", "content": " 1+1? "}], "reward_model": {"style": "rule", "ground_truth": "2"}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "test.parquet")
    (problem,) = benchmarks.load(str(tmp_path / "test.parquet")).problems
    assert (problem.gold, problem.messages) == ("2", ({"role": "user", "content": " 1+1? "},))


def test_a_local_copy_of_a_benchmark_must_have_its_count(tmp_path):
    rows = [{"problem": "p", "answer": "1", "unique_id": str(n), "level": 1} for n in range(3)]
    path = write_jsonl(tmp_path / "m.jsonl", rows)
    with pytest.raises(DataError, match="expected 500 problems, found 3"):
        benchmarks.load("math_500", str(path))
    assert len(benchmarks.load("math_500", str(path), limit=2).problems) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "?"}], "a row has no question: expected a column question or problem"),
        ([{"question": "?"}], "a row has no answer"),
        ([], "has no rows"),
        (["text"], "must be a JSON object"),
    ],
)
def test_faulty_data_is_refused_in_a_sentence(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        benchmarks.load(str(write_jsonl(tmp_path / "faulty.jsonl", rows)))


def test_repeated_ids_and_missing_files_are_refused(tmp_path):
    rows = [{"problem": "p", "answer": "1", "unique_id": "same"}] * 500
    with pytest.raises(DataError, match="499 problem ids occur twice"):
        benchmarks.load("math_500", str(write_jsonl(tmp_path / "m.jsonl", rows)))
    with pytest.raises(MissingFileError):
        benchmarks.load(str(tmp_path / "absent.jsonl"))


def test_questions_with_braces_and_options_reach_the_prompt_unchanged(tmp_path):
    rows = [{"question": r"Is {x} in \frac{1}{2}? {options}", "answer": 1, "options": ["yes", "no"], "text": "C {a}"}]
    loaded = benchmarks.load(str(write_jsonl(tmp_path / "q.jsonl", rows)))
    template = "{text}|{question}|{options}|"
    text = prompts.question_text(loaded.problems[0], loaded, PromptOptions(template=template, suffix="\n"))
    assert text == "C {a}|" + rows[0]["question"] + "|A. yes\nB. no|\n"


def test_mmlu_pro_brings_its_own_worked_examples(tmp_path):
    row = {"question": "Who?", "options": ["x", "y"], "category": "law", "question_id": 1, "answer": "B"}
    data = write_jsonl(tmp_path / "test.jsonl", [row])
    shots = [
        row | {"question": f"Shot {n}?", "cot_content": f"A: Let's think step by step. It is {n}."} for n in range(7)
    ]
    path = write_jsonl(tmp_path / "shots.jsonl", shots)
    loaded = benchmarks.load("mmlu_pro", str(data), limit=1, with_shots=True, shots_path=str(path))
    options = PromptOptions(chat_template=False, few_shot="own", bos=False)
    text = decoded(prompts.encode(CountingTokenizer(), loaded.problems[0], loaded, options))
    assert "about law" in text and text.count("Shot") == 5
    assert text.endswith("Question:\nWho?\nOptions:\nA. x\nB. y\nAnswer: Let's think step by step.")
    with pytest.raises(ConfigError, match="brings no worked examples"):
        benchmarks.load("gsm8k", str(write_jsonl(tmp_path / "g.jsonl", [row])), limit=1, with_shots=True)


def test_worked_examples_stand_in_front_and_are_right(questions):
    loaded = benchmarks.load(str(questions))
    text = prompts.question_text(loaded.problems[0], loaded, PromptOptions(few_shot="math_4shot"))
    assert text.count("The final answer is $\\boxed{") == 4
    assert text.endswith("What is 0+0?")
    with pytest.raises(ConfigError, match="there are math_4shot"):
        prompts.few_shot_text("absent")


class CountingTokenizer:
    """Characters as tokens; BOS is 0."""

    bos_token_id = 0
    chat_template = "set"

    def encode(self, text, add_special_tokens=True):
        return ([0] if add_special_tokens else []) + [ord(character) for character in text]

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, **extra):
        return "|".join(f"{m['role']}:{m['content']}" for m in messages) + f"|{extra}"


def decoded(ids):
    return "".join(chr(i) for i in ids)


def test_chat_template_system_and_thinking_are_explicit(questions):
    loaded = benchmarks.load(str(questions), limit=1)
    options = PromptOptions(system="S", thinking=False)
    ids = prompts.encode(CountingTokenizer(), loaded.problems[0], loaded, options)
    assert decoded(ids) == "system:S|user:What is 0+0?|{'enable_thinking': False}"
    assert "enable_thinking" not in decoded(
        prompts.encode(CountingTokenizer(), loaded.problems[0], loaded, PromptOptions())
    )


@pytest.mark.parametrize(("bos", "count"), [(None, 1), (True, 1), (False, 0)])
def test_bos_of_a_bare_prompt_is_explicit(questions, bos, count):
    loaded = benchmarks.load(str(questions), limit=1)
    ids = prompts.encode(CountingTokenizer(), loaded.problems[0], loaded, PromptOptions(chat_template=False, bos=bos))
    assert ids.count(0) == count
    assert decoded(ids).lstrip("\0") == "What is 0+0?"


def test_a_tokenizer_without_a_template_is_refused(questions):
    loaded, tokenizer = benchmarks.load(str(questions), limit=1), CountingTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="prompt.chat_template=false"):
        prompts.encode(tokenizer, loaded.problems[0], loaded, PromptOptions())


REFUSED = """
benchmarks=[] -> benchmarks
benchmarks=gsm8k -> benchmarks
benchmarks=[a/test.jsonl,b/test.jsonl] -> benchmarks
models=[] -> models
models=m -> models
models=[m,n/m] -> models
models=[{path:a,endpoint:b}] -> models
models=[{endpoint:b}] -> models
models=[{endpoint:[b,b],model:c}] -> models
k=[4] -> sampling.n
k=[] -> k
k=[0] -> k.0
partner.model={endpoint:b} -> partner.model
partner.model={endpoint:b,model:c} partner.readings=[legibility] -> partner.model
partner.model={endpoint:b,model:c,tokenizer:d} -> partner.readings
partner.model=a/b models=[{endpoint:b,model:c}] partner.readings=[sentence_handoff] -> models
partner.model=a/b models=[] score_only=f -> score_only
partner.readings=[legibility] -> partner.model
partner.model=a/b partner.readings=[charm] -> partner.readings.0
partner.model=a/b partner.readings=[] -> partner.readings
partner.legibility_responses=0 -> partner.legibility_responses
handoff.partner_memory=1.0 -> handoff.partner_memory
handoff.starts=letter -> handoff.starts
score_only=x -> score_only
sampling=3 -> sampling
sampling.m=1 ->
sampling.n=4 -> sampling
sampling.n=many -> sampling.n
sampling.temperature=-1 -> sampling.temperature
sampling.temperature=nan -> sampling.temperature
sampling.stop=END -> sampling.stop
sampling.preset=qwen -> sampling.preset
sampling.budgets={aime24:9} -> sampling.budgets
sampling.budgets={gsm8k:0} -> sampling.budgets.gsm8k
endpoint.concurrency=0 -> endpoint.concurrency
endpoint.timeout=soon -> endpoint.timeout
prompt.thinking=2 -> prompt.thinking
prompt.few_shot=own -> prompt.chat_template
macro={all:gsm8k} -> macro.all
macro={all:[gsm8k,[gsm8k]]} -> macro.all
metrics.denominator=most -> metrics.denominator
grading.math.mode=exact -> grading.math.mode
grading.multiple_choice.style=x -> grading.multiple_choice.style
level=95 -> level
limit=-3 -> limit
limit=few -> limit
output_dir=null -> output_dir
+limits=3 -> limits
+sampling.topp=0.9 -> sampling.topp
+grading.math.nosuch=1 -> grading.math.nosuch
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_bad_settings_are_refused_before_anything_is_loaded(line):
    overrides, _, key = line.partition(" ->")
    with pytest.raises(ConfigError) as refused:
        read_settings(["models=[m]", "benchmarks=[gsm8k]", *overrides.split()])
    assert refused.value.key == key.strip()


def test_what_has_names_of_others_takes_any():
    added = [
        "+engine.quantization=fp8",
        "+endpoint.extra_body.top_k=5",
        "+data.own=x.jsonl",
        "++limit=3",
        "+macro.all=[gsm8k]",
    ]
    settings = read_settings(["models=[m]", "benchmarks=[gsm8k]", *added])
    assert settings.engine["quantization"] == "fp8" and settings.limit == 3 and settings.data["own"] == "x.jsonl"


def test_the_last_step_of_a_run_and_its_export_are_found(tmp_path):
    exported = tmp_path / "run" / "global_step_12" / "actor" / "huggingface"
    exported.mkdir(parents=True)
    (exported / "config.json").touch()
    (exported / "model.safetensors").touch()
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("12")
    for path in (tmp_path / "run", exported.parents[1], exported.parent, exported):
        assert model_folder(str(path), tmp_path) == str(exported)


def test_what_is_no_model_is_refused(tmp_path):
    assert model_folder("Qwen/Qwen3-4B", tmp_path) == "Qwen/Qwen3-4B"
    with pytest.raises(MissingFileError):
        model_folder(str(tmp_path / "absent"), tmp_path)
    with pytest.raises(CheckpointError, match="neither an HF model folder"):
        model_folder(str(tmp_path), tmp_path)
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "model_world_size_2_rank_1.pt").touch()
    with pytest.raises(CheckpointError, match=r"lacks the shards of ranks \[0\]"):
        model_folder(str(tmp_path), tmp_path)
    (tmp_path / "actor" / "lora_train_meta.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"python -m recipes\.launch\.export_adapter"):
        model_folder(str(tmp_path), tmp_path)


def test_the_seed_of_a_problem_depends_on_nothing_else():
    assert problem_seed(0, "gsm8k", "1") == problem_seed(0, "gsm8k", "1")
    assert (
        len({problem_seed(run, name, p) for run in (0, 1) for name in ("a", "b") for p in map(str, range(50))}) == 200
    )


def test_saved_responses_are_graded_again_for_any_k(questions, tmp_path, capsys):
    rows = [
        {
            "problem": str(n),
            "sample": i,
            "response": rf"\boxed{{{2 * n + (i > n)}}}",
            "tokens": 4,
            "finish_reason": "stop",
        }
        for n in range(4)
        for i in range(4)
    ]
    saved = write_jsonl(tmp_path / "saved.jsonl", rows)
    output = tmp_path / "out"
    arguments = [f"benchmarks=[{questions}]", f"score_only={saved}", "k=[1,2,4]", f"output_dir={output}"]
    assert main(arguments) == 0
    result = json.loads((output / "summary.json").read_text())["models"]["saved"]["sums"]
    assert result["metrics"]["pass@1"]["mean"] == pytest.approx((1 + 2 + 3 + 4) / 16)
    assert result["metrics"]["pass@4"]["mean"] == 1.0
    # Problem 0 has one right of four, problem 1 a tie that is even, problems 2 and 3 a right majority.
    assert result["metrics"]["maj@4"]["mean"] == pytest.approx((0 + 0.5 + 1 + 1) / 4)
    assert "| saved | sums | pass@4 | 100.00 [51.01, 100.00] | all, 4 of 4 |" in (output / "summary.md").read_text()
    card = json.loads((output / "run_card.json").read_text())
    assert card["benchmarks"]["sums"]["problems"] == 4 and card["versions"]["python"]
    assert (output / "pass_at_k.png").read_bytes().startswith(b"\x89PNG")
    assert "wrote" in capsys.readouterr().out


def test_responses_to_other_problems_are_refused(questions, tmp_path, capsys):
    row = {"problem": "99", "sample": 0, "response": "x", "tokens": 1, "finish_reason": "stop"}
    saved = write_jsonl(tmp_path / "saved.jsonl", [row])
    assert main([f"benchmarks=[{questions}]", f"score_only={saved}", f"output_dir={tmp_path / 'out'}"]) == 2
    assert "holds 1 problems that sums does not have" in capsys.readouterr().err


def test_the_leaderboard_file_has_an_option_for_every_question(tmp_path):
    texts = ["Finish[The answer is C.]", "Finish[A or B]", "Finish[D]"]
    rows = [SampledResponse(str(n), 0, text, 1, "stop").__dict__ for n, text in enumerate(texts)]
    saved = write_jsonl(tmp_path / "r.jsonl", rows)
    assert reclor.main([str(saved), str(tmp_path / "p.npy"), "--style", "finish"]) == 0
    assert np.load(tmp_path / "p.npy").tolist() == [2, 0, 3]
    assert reclor.main([str(saved), str(tmp_path / "predictions")]) == 0
    assert np.load(tmp_path / "predictions").shape == (3,), "the file has the name that was given"


def test_a_leaderboard_file_without_responses_or_a_folder_is_refused(tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("")
    assert reclor.main([str(tmp_path / "empty.jsonl"), str(tmp_path / "p.npy")]) == 2
    assert capsys.readouterr().err == "reclor: found no response to any question\n"
    saved = write_jsonl(tmp_path / "r.jsonl", [SampledResponse("0", 0, "Finish[A]", 1, "stop").__dict__])
    assert reclor.main([str(saved), str(tmp_path / "no" / "p.npy")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_saved_responses_in_unequal_numbers_have_one_mean(questions, tmp_path):
    rows = [
        {"problem": problem, "sample": n, "response": "x", "tokens": 1, "finish_reason": "stop"}
        for problem, many in (("0", 3), ("1", 2))
        for n in range(many)
    ]
    saved = write_jsonl(tmp_path / "saved.jsonl", rows)
    out = tmp_path / "out"
    assert main([f"benchmarks=[{questions}]", f"score_only={saved}", f"output_dir={out}", "k=[1,2]"]) == 0
    found = json.loads((out / "summary.json").read_text())["models"]["saved"]["sums"]
    assert set(found["metrics"]) == {"avg", "pass@1", "pass@2", "maj@2"}


def test_a_folder_that_cannot_be_made_is_refused(questions, tmp_path, capsys):
    assert main([f"benchmarks=[{questions}]", "models=[m]", f"output_dir={questions}"]) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_an_unlabelled_split_is_answered_and_not_graded(tmp_path, capsys):
    rows = [
        {"context": "C", "question": "Q?", "answers": ["w", "x", "y", "z"], "id_string": f"test_{n}"} for n in range(2)
    ]
    data = tmp_path / "test.json"
    data.write_text(json.dumps(rows))
    assert [problem.id for problem in benchmarks.load("reclor", str(data)).problems] == ["0", "1"]
    saved = write_jsonl(
        tmp_path / "saved.jsonl", [SampledResponse(str(n), 0, "Finish[B]", 1, "stop").__dict__ for n in range(2)]
    )
    arguments = ["benchmarks=[reclor]", f"data.reclor={data}", f"score_only={saved}", f"output_dir={tmp_path / 'out'}"]
    assert main(arguments) == 0
    assert "reclor has no labels" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["models"] == {}


def test_labels_missing_for_some_are_a_fault_of_the_data(tmp_path):
    rows = [{"context": "C", "question": "Q?", "answers": ["w", "x"], "label": 1}, {"question": "Q?", "answers": ["w"]}]
    (tmp_path / "val.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match="1 of 2 problems have no answer"):
        benchmarks.load("reclor", str(tmp_path / "val.json"))


def test_the_published_protocol_of_step_ppo_asks_as_the_recipe_does_and_reads_its_finish(tmp_path):
    """A benchmark's rows and the recipe's own parquet give one prompt, and the protocol's grader reads its answer."""
    from recipes.evaluation.grade import grade
    from recipes.step_ppo.pipeline.data import DATASETS
    from recipes.step_ppo.prompts import react_prompt

    protocol = published_protocol("step_ppo")
    item = {"text": "A or B.", "question": "Which?", "options": ["a", "b", "c", "d"], "answer": 1}
    raw = benchmarks.load("logiqa_v2", str(write_jsonl(tmp_path / "raw.jsonl", [item])), limit=1)
    asked = react_prompt(item["text"], item["question"], item["options"])
    assert prompts.question_text(raw.problems[0], raw, PromptOptions(**protocol["prompt"])) == asked

    pq.write_table(pa.Table.from_pylist([DATASETS["logiqa2"].row(item, 0, "test", None)]), tmp_path / "own.parquet")
    own = benchmarks.load(str(tmp_path / "own.parquet"))
    assert own.problems[0].question == asked and own.kind == raw.kind == "multiple_choice"
    texts = ["It is b.\nAction 1: Finish[The answer is B.]", "Action 1: Finish[The answer is A.]"]
    for benchmark in (raw, own):
        samples = {"0": [SampledResponse("0", n, text, 9, "stop") for n, text in enumerate(texts)]}
        options = {**benchmark.grading, **protocol["grading"]["multiple_choice"]}
        (graded,) = grade(benchmark.kind, samples, {"0": benchmark.problems[0].gold}, options).values()
        assert [one.right for one in graded] == [True, False]


def test_the_published_protocol_of_pasodoble_asks_as_the_solver_is_asked():
    from recipes.pasodoble.prompts import Prompts

    protocol = published_protocol("pasodoble")
    problem = benchmarks.Problem("0", "What is 1 + 1?", "2")
    own = benchmarks.Benchmark("b", "math", (problem,), "not this {question}", {}, {})
    asked = prompts.messages(problem, own, PromptOptions(**protocol["prompt"]))
    assert asked == Prompts().for_solver("What is 1 + 1?")
