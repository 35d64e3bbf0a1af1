"""Few-shot prompts against a server that answers, fails, and hangs."""

import asyncio
from types import SimpleNamespace

import pytest

from recipes.serl.generation import GenerationFailed, chat_tokenizer, generate_texts
from recipes.serl.settings import InstructionSettings


class Server:
    """Echoes the prompt; what is in `faults` raises or hangs instead."""

    def __init__(self, faults=()):
        self.faults = dict(faults)
        self.requests = []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.requests.append((request_id, sampling_params))
        fault = self.faults.get(prompt_ids[0])
        if fault == "hang":
            await asyncio.sleep(60)
        if fault is not None:
            raise fault
        return SimpleNamespace(token_ids=prompt_ids)


class Letters:
    chat_template = None

    def decode(self, ids, skip_special_tokens):
        return "".join(chr(i) for i in ids)

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [ord(c) for c in text]}


def texts(server, prompts, seed="42/1/0", timeout=5.0, **options):
    return generate_texts(server, Letters(), InstructionSettings(), prompts, seed=seed, timeout=timeout, **options)


def test_answers_come_in_order_and_faults_stay_with_their_prompt():
    server = Server({2: ValueError("too long"), 3: "hang"})
    assert texts(server, [[65], [2], [66], [3]], timeout=0.2) == ["A", None, "B", None]


def test_a_call_without_any_answer_is_a_fault_of_the_server():
    with pytest.raises(GenerationFailed, match="no prompt of 2 was answered: ValueError"):
        texts(Server({1: ValueError("gone"), 2: ValueError("gone")}), [[1], [2]])


def test_sampling_is_its_own_and_seeds_depend_on_the_place_alone():
    def seeds(step, call):
        server = Server()
        texts(server, [[1], [2]], f"42/{step}/{call}")
        assert len({request_id for request_id, _ in server.requests}) == 2
        for _, params in server.requests:
            rest = {key: value for key, value in params.items() if key != "seed"}
            assert rest == {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 2.0, "max_tokens": 1024}
        return tuple(params["seed"] for _, params in server.requests)

    assert seeds(1, 0) == seeds(1, 0)
    assert len({seed for step in range(5) for call in range(5) for seed in seeds(step, call)}) == 50


@pytest.mark.parametrize(("engine", "name"), [("vllm", "seed"), ("sglang", "sampling_seed")])
def test_the_seed_has_the_name_that_the_engine_knows(engine, name):
    server = Server()
    texts(server, [[1]], engine=engine)
    ((_, params),) = server.requests
    assert set(params) == {"temperature", "top_p", "presence_penalty", "max_tokens", name}


def test_a_tokenizer_without_chat_template_gets_the_bare_text():
    tokenize = chat_tokenizer(Letters())
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert tokenize(messages) == [ord("S"), ord("\n"), ord("U")]


def test_the_chat_template_opens_the_assistants_turn():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(
        models.WordLevel({"[UNK]": 0, "<user>": 1, "More:": 2, "<assistant>": 3, "think": 4}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% if enable_thinking %} think{% endif %}{% endif %}"
    )
    messages = [{"role": "user", "content": "More:"}]
    assert chat_tokenizer(tokenizer)(messages) == [1, 2, 3]
    assert chat_tokenizer(tokenizer, {"enable_thinking": True})(messages) == [1, 2, 3, 4]
