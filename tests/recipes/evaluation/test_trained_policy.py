"""When a trainer evaluates its policy, and that it asks the engines of that step; the engine is a server of our own."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from recipes.core.requests import LocalRequests
from recipes.core.trainer import DuetTrainer
from recipes.evaluation import during_training
from recipes.evaluation.during_training import PolicyEvaluation


class Trainer(DuetTrainer):
    """The trainer of every recipe in the order in which verl's `fit` calls it."""

    def __init__(self, steps, every, *, ends_at=None, asked_to_end_at=None, resumed=0):
        self.config = OmegaConf.create({"evaluation": {"every": every}, "trainer": {"val_before_train": True}})
        self.total_training_steps, self.global_steps = steps, resumed
        self.ends_at, self.asked_to_end_at, self.log = ends_at, asked_to_end_at, {}
        self.logger = SimpleNamespace(log=lambda data, step: self.log.setdefault(step, {}).update(data))
        self.evaluation, self.requests = PolicyEvaluation(), LocalRequests()

    def fit(self):
        self.global_steps += 1
        self.on_train_begin()
        while self.global_steps <= self.total_training_steps:
            last, metrics, timing = self.global_steps >= self.total_training_steps, {}, {}
            if self.global_steps == self.ends_at:
                self.total_training_steps = self.global_steps
            if self.global_steps == self.asked_to_end_at:
                self.total_training_steps, self.stopped = self.global_steps, True
            self._compute_metrics(None, metrics, timing, self.global_steps, 0)
            self.logger.log(
                data=metrics | {f"timing_s/{key}": value for key, value in timing.items()}, step=self.global_steps
            )
            self.global_steps += 1
            if last:
                return
        self.on_train_end()

    def measure_step(self, batch, metrics, timing_raw, global_steps, epoch):
        metrics["loss"] = 0.5


@pytest.mark.parametrize(
    ("options", "evaluated"),
    [
        ({"steps": 5, "every": 2}, [0, 2, 4, 5]),
        ({"steps": 4, "every": 2}, [0, 2, 4]),
        ({"steps": 5, "every": 9}, [0, 5]),
        ({"steps": 5, "every": 2, "resumed": 3}, [4, 5]),
        ({"steps": 9, "every": 4, "ends_at": 6}, [0, 4, 6]),
        ({"steps": 9, "every": 3, "ends_at": 6}, [0, 3, 6]),
        ({"steps": 9, "every": 4, "asked_to_end_at": 6}, [0, 4]),
    ],
)
def test_the_policy_is_evaluated_before_every_n_steps_and_at_the_end(options, evaluated, monkeypatch):
    def evaluate(self, trainer, step):
        self._evaluated_step = step
        return {"evaluation/toy/pass@1": step}

    monkeypatch.setattr(PolicyEvaluation, "evaluate", evaluate)
    trainer = Trainer(**options)
    trainer.fit()
    assert {
        step: data["evaluation/toy/pass@1"] for step, data in trainer.log.items() if len(data) > 1 or step == 0
    } == {step: step for step in evaluated}
    assert all("loss" in data for step, data in trainer.log.items() if step)


@pytest.fixture
def engine():
    """Address of a server that answers every prompt with `state["text"]` and keeps the requests."""
    state = {"text": r"\boxed{4}", "asked": []}

    class Handler(BaseHTTPRequestHandler):
        def reply(self, content):
            content = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            self.reply({"data": [{"id": name} for name in state.get("served", ["/models/policy"])]})

        def do_POST(self):
            state["asked"].append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            choice = {"index": 0, "text": state["text"], "finish_reason": "stop", "token_ids": [1, 2, 3]}
            self.reply({"choices": [choice], "usage": {"prompt_tokens": 4, "completion_tokens": 3}})

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}", state
    server.shutdown()
    server.server_close()


@pytest.fixture
def trainer(engine, tmp_path):
    """A trainer with that engine and a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"?": 0, "2": 1, "+": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    data = tmp_path / "toy.jsonl"
    data.write_text("".join(json.dumps({"question": "2 + 2", "answer": str(4 + i // 3)}) + "\n" for i in range(4)))
    arguments = ["every=1", f"benchmarks=[{data}]", "prompt.chat_template=false"]
    trainer = Trainer(steps=1, every=1)
    trainer.config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": {"name": "vllm"}},
            "trainer": {"default_local_dir": str(tmp_path / "run"), "val_before_train": True},
            "evaluation": during_training.read_block(arguments, 32),
        }
    )
    trainer.tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "tokenizer")
    trainer.llm_server_manager = SimpleNamespace(get_addresses=lambda: [engine[0]])
    trainer.awake, trainer.seen = False, []
    trainer.on_validate_begin = lambda: setattr(trainer, "awake", True)
    trainer.on_validate_end = lambda: setattr(trainer, "awake", False)
    return trainer


def test_the_numbers_are_those_of_the_engines_at_that_step(trainer, engine, tmp_path):
    trainer.fit()
    assert trainer.log[0] == {
        "evaluation/toy/pass@1": 0.75,
        "evaluation/toy/avg@1": 0.75,
        "evaluation/toy/counted_problems": 4.0,
        "evaluation/toy/truncated": 0.0,
        "evaluation/toy/mean_tokens": 3.0,
    }
    assert trainer.log[1]["timing_s/evaluation"] > 0 and not trainer.awake
    body = engine[1]["asked"][0]
    assert (body["model"], body["prompt"], body["max_tokens"], body["temperature"]) == (
        "/models/policy",
        [1, 2, 1],
        32,
        0,
    )
    assert {path.name for path in (tmp_path / "run" / "evaluation").iterdir()} == {"step_0", "step_1"}

    engine[1]["text"] = r"\boxed{5}"
    again = trainer.evaluation.evaluate(trainer, 1)
    assert again["evaluation/toy/pass@1"] == 0.25, "responses of other weights were taken for those of these"


def test_an_engine_that_serves_more_than_the_policy_is_refused(trainer, engine):
    engine[1]["served"] = ["/models/policy", "adapter"]
    with pytest.raises(RuntimeError, match="expected the policy"):
        trainer.evaluation.evaluate(trainer, 1)
    assert not trainer.awake
