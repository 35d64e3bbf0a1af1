"""The portable path: a scripted server as the senior, a real HTTP endpoint with a scripted junior behind it."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from recipes.core.settings import read
from recipes.errors import ConfigError
from recipes.tandem.agent_loop import COUNTS, FAULT
from recipes.tandem.portable.joint_writer import PortableTandemAgentLoop
from recipes.tandem.portable.settings import BLOCK, PortableSettings
from recipes.tandem.settings import KEY
from vllm_patches.tandem.config import request_settings
from vllm_patches.tandem.schedule import AuthorSchedule

WORDS = ["<unk>", "<|im_end|>", "user", "assistant", "\n", "1", "2", "+", "\u0120is", "\u0120the"]
STOP, BOUNDARY, LENGTH = 1, {8, 9}, 18


def following(prefix, author):
    """What an author writes after a prefix: now and then a word, at last the end; they agree at every other token."""
    if len(prefix) > 20:
        return STOP
    return 5 + (hash(tuple(prefix)) + author * (len(prefix) % 2)) % 5


def continued(prefix, author, most):
    written = []
    while len(written) < most and STOP not in written:
        written.append(following([*prefix, *written], author))
    return written


class Junior(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint; ``faults`` are answered first, each with a status and a body."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked, self.faults = [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Answer(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.reply(200, {"object": "list", "data": [{"id": "junior", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        if self.server.faults:
            return self.reply(*self.server.faults.pop(0))
        written = continued(body["prompt"], 0, body["max_tokens"])
        choice = {"index": 0, "text": "", "finish_reason": "length", "token_ids": written}
        self.reply(200, {"id": "1", "object": "text_completion", "created": 0, "model": "junior", "choices": [choice]})

    def reply(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def junior():
    server = Junior()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        chat_template="{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant ",
    )


class Senior:
    """verl's server with a scripted model, whose answers to requests made at once come in another order."""

    def __init__(self):
        self.asked = []

    async def generate(self, request_id, prompt_ids, sampling_params, **kwargs):
        self.asked.append(sampling_params)
        written = continued(prompt_ids, 1, sampling_params["max_tokens"])
        texts = [[*prompt_ids, *written[: i + 1]] for i in range(len(written))]
        await asyncio.sleep(0.005 / len(self.asked))
        return TokenOutput(token_ids=written, log_probs=[log_prob(text) for text in texts])


def log_prob(text):
    """What the senior makes of a text's last token; it depends on all that stands before it."""
    return -float(sum((i + 1) * token for i, token in enumerate(text)))


def block(url, **changes):
    settings = {"junior_url": url, "junior_name": "junior", "chunk_tokens": 4, "timeout": 5.0, "max_retries": 1}
    schedule = {"junior_model": "/models/junior", "prob_senior": 0.5, "max_gap_tokens": 3, "seed": 11}
    return settings | {"tandem_config": schedule} | changes


def run(senior, url, tokenizer, validation=None, index=3, **changes):
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {"prompt_length": 32, "response_length": LENGTH, "max_model_len": 64, "engine_kwargs": {}}
            },
            "algorithm": {"tandem": {"portable": block(url, **changes)}},
            "data": {},
        }
    )

    async def respond():
        loop = PortableTandemAgentLoop(
            DictConfigWrap(config), senior, tokenizer, None, SimpleNamespace, DictConfigWrap(config.data)
        )
        fields = {"index": index, "global_steps": 5, "session_id": 2}
        if validation:
            fields["validation_authors"] = validation
        sampling = {"temperature": 0.6, "top_p": 0.9, "top_k": -1, "logprobs": True}
        return await loop.run(sampling, raw_prompt=[{"role": "user", "content": "1 + 1"}], **fields)

    return asyncio.run(respond())


def turn_by_turn(prompt, index):
    """The plain loop over both scripts: ask the schedule, let that author emit one token, tell the schedule."""
    from recipes.tandem.authorship import response_identity

    config = read(PortableSettings, block("http://nowhere"), BLOCK).schedule
    extra = {"request": response_identity(index, 5, 2, False)}
    schedule = AuthorSchedule(request_settings(config, extra, prompt).params, BOUNDARY)
    tokens, mask = [], []
    while len(tokens) < LENGTH and STOP not in tokens:
        mask.append(schedule.author)
        tokens.append(following([*prompt, *tokens], mask[-1]))
        schedule.advance(tokens[-1])
    return tokens, mask


def test_two_engines_write_what_the_plain_loop_writes(junior, tokenizer):
    senior, seen = Senior(), set()
    for index in range(16, 22):
        output = run(senior, junior.url, tokenizer, index=index)
        tokens, mask = turn_by_turn(output.prompt_ids, index)
        emitted = len(tokens)
        assert output.response_ids[:emitted] == tokens and output.response_mask[:emitted] == mask
        assert output.response_logprobs[:emitted] == [
            log_prob([*output.prompt_ids, *tokens[: i + 1]]) if author else 0.0 for i, author in enumerate(mask)
        ]
        assert output.extra_fields[COUNTS]["senior_tokens"] == sum(mask)
        seen.add(tuple(mask))
    assert len(seen) > 1 and any(0 < sum(mask) < len(mask) for mask in seen)
    assert all(asked["max_tokens"] <= 4 and "extra_args" not in asked for asked in senior.asked)
    assert {(body["temperature"], body["top_p"], body["model"]) for body in junior.asked} == {(0.6, 0.9, "junior")}
    assert max(body["max_tokens"] for body in junior.asked) == 4


def test_solo_validation_leaves_the_junior_alone(junior, tokenizer):
    senior = Senior()
    output = run(senior, junior.url, tokenizer, validation="solo")
    assert len(senior.asked) == 1 and junior.asked == []
    assert set(output.response_mask[: output.extra_fields[COUNTS]["tokens"]]) == {1}


def test_a_passing_fault_of_the_endpoint_is_retried(junior, tokenizer):
    junior.faults = [(503, {"error": {"message": "busy"}})]
    output = run(Senior(), junior.url, tokenizer, index=0)
    assert output.response_ids[: len(turn_by_turn(output.prompt_ids, 0)[0])] == turn_by_turn(output.prompt_ids, 0)[0]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((503, {"error": {"message": "busy"}}), "busy"),
        ((404, {"error": {"message": "no such model"}}), "no such model"),
        (
            (200, {"id": "1", "object": "x", "created": 0, "model": "j", "choices": [{"text": "hi"}]}),
            "return_token_ids",
        ),
    ],
)
def test_a_lasting_fault_excludes_the_response(junior, tokenizer, answer, sentence):
    junior.faults = [answer] * 20
    outputs = [run(Senior(), junior.url, tokenizer, index=index) for index in range(3)]
    (fault, *_) = [o.extra_fields["reward_extra_info"][FAULT] for o in outputs if "reward_extra_info" in o.extra_fields]
    assert "the junior's endpoint" in fault and sentence in fault


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"junior_url": None}, f"{BLOCK}.junior_url"),
        ({"junior_url": "localhost:8000"}, f"{BLOCK}.junior_url"),
        ({"junior_name": None}, f"{BLOCK}.junior_name"),
        ({"chunk_tokens": 0}, f"{BLOCK}.chunk_tokens"),
        ({"timeout": -1}, f"{BLOCK}.timeout"),
        ({"chunks": 3}, f"{BLOCK}.chunks"),
        ({"tandem_config": {"junior_model": "m", "word_align": "before"}}, f"{BLOCK}.tandem_config.word_align"),
        ({"tandem_config": {"junior_model": "m", "prob_senior": 2}}, KEY),
    ],
)
def test_faulty_settings_are_refused(changes, key):
    with pytest.raises(ConfigError) as refusal:
        read(PortableSettings, block("http://host:8000/v1", **changes), BLOCK)
    assert refusal.value.key == key
