"""What the scheduler adds to vLLM's, by itself: authors of tokens, held blocks, refused requests."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("vllm")

from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

from vllm_patches.tandem import scheduler as scheduler_module  # noqa: E402
from vllm_patches.tandem.scheduler import TandemScheduler  # noqa: E402


def request(name="a", *, stop=(), authors=(), sends_each=False, extra_args=None, client_index=0):
    params = SimpleNamespace(stop=list(stop), extra_args=extra_args)
    return SimpleNamespace(
        request_id=name,
        sampling_params=params,
        tandem_authors=list(authors),
        tandem_sends_each_author=sends_each,
        client_index=client_index,
    )


class Stock:
    """What vLLM's scheduler is asked, in order, and the outputs it gives."""

    def __init__(self, monkeypatch):
        self.asked, self.outputs = [], {}
        monkeypatch.setattr(Scheduler, "__init__", lambda scheduler, config: self.start(scheduler, config))
        monkeypatch.setattr(Scheduler, "add_request", lambda _, one: self.asked.append(("add", one.request_id)))
        monkeypatch.setattr(Scheduler, "finish_requests", lambda _, *ended: self.asked.append(("finish", *ended)))
        monkeypatch.setattr(Scheduler, "update_from_output", lambda *_: self.update())
        monkeypatch.setattr(scheduler_module.guard, "require", lambda part: self.asked.append(("guard", part)))
        self.logged = []
        log = SimpleNamespace(error=lambda text, *values: self.logged.append(text % values))
        monkeypatch.setattr(scheduler_module, "logger", log)

    def start(self, scheduler, vllm_config):
        scheduler.vllm_config, scheduler.requests = vllm_config, {}
        scheduler.kv_cache_manager = SimpleNamespace(
            allocate_slots=lambda one, tokens, delay_cache_blocks=False: (tokens, delay_cache_blocks),
            cache_blocks=lambda one, tokens: self.asked.append(("cache", one.request_id, tokens)),
        )

    def update(self):
        self.asked.append(("update",))
        return self.outputs


@pytest.fixture
def stock(monkeypatch):
    return Stock(monkeypatch)


@pytest.fixture
def start(stock, monkeypatch):
    def start(mode="lock_step", word_align="after", refuses=()):
        def check(one):
            if one.request_id in refuses:
                raise ValueError("not this one")
            return SimpleNamespace(params=SimpleNamespace(word_align=word_align))

        rules = SimpleNamespace(mode=mode, config="the configuration", check=check)
        monkeypatch.setattr(scheduler_module, "RequestRules", lambda config: rules)
        return TandemScheduler("vllm's configuration")

    return start


def step(scheduler, stock, *outputs, rows=("a", "b"), authors=(1, 0), held=None):
    """One update with these outputs of client 0; returns what all clients get."""
    stock.outputs = {0: EngineCoreOutputs(outputs=list(outputs))} if outputs else {}
    told = SimpleNamespace(
        req_id_to_index={name: row for row, name in enumerate(rows)}, tandem_authors=np.array(authors)
    )
    if held is not None:
        told.tandem_held = held
    sampled = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(rows, 1))
    return scheduler.update_from_output(sampled, told)


def bits(output):
    return None if output.routed_experts is None else output.routed_experts.ravel().tolist()


def test_the_upstream_symbols_are_checked_first(start, stock):
    assert start()._tandem_config == "the configuration"
    assert stock.asked == [("guard", "tandem")]


def test_authors_are_noted_and_sent_once_at_the_end(start, stock):
    scheduler, one, other = start(), request("a"), request("b", authors=[1])
    scheduler.requests = {"a": one, "b": other}
    running = EngineCoreOutput("a", [7])
    ended = EngineCoreOutput("b", [8], finish_reason=FinishReason.LENGTH, kv_transfer_params={"theirs": 1})
    step(scheduler, stock, running, ended)
    assert one.tandem_authors == [1] and bits(running) is None and running.kv_transfer_params is None
    assert other.tandem_authors == [1, 0] and bits(ended) == [1, 0]
    assert ended.kv_transfer_params == {"theirs": 1, "tandem_authorship": [1, 0]}


def test_each_author_is_sent_where_the_front_end_may_end_the_response(start, stock):
    scheduler, one = start(), request("a", stop=["."], authors=[0, 0], sends_each=True)
    scheduler.requests = {"a": one}
    running, ended = EngineCoreOutput("a", [7]), EngineCoreOutput("a", [8], finish_reason=FinishReason.STOP)
    step(scheduler, stock, running)
    step(scheduler, stock, ended, authors=(0, 0))
    assert bits(running) == [1] and bits(ended) == [0]
    assert running.kv_transfer_params == {"tandem_authorship": [0, 0, 1]}, "the front end may end the response here"
    assert ended.kv_transfer_params == {"tandem_authorship": [0, 0, 1, 0]}


def test_an_end_without_a_token_sends_the_mask_and_of_several_responses_none_stands_for_all(start, stock):
    scheduler, one = start(), request("a", authors=[1, 0], extra_args={"tandem_responses": 2})
    scheduler.requests = {"a": one}
    ended = EngineCoreOutput("a", [], finish_reason=FinishReason.ABORT)
    step(scheduler, stock, ended)
    assert bits(ended) == [1, 0] and ended.kv_transfer_params is None and one.tandem_authors == [1, 0]


def test_outputs_of_requests_that_are_gone_pass(start, stock):
    gone = EngineCoreOutput("a", [7])
    assert step(start(), stock, gone)[0].outputs == [gone] and bits(gone) is None


def test_a_step_of_several_tokens_is_an_error(start, stock):
    scheduler = start()
    scheduler.requests = {"a": request("a")}
    with pytest.raises(RuntimeError, match="emitted 2 tokens"):
        step(scheduler, stock, EngineCoreOutput("a", [7, 8]))


def test_blocks_that_both_models_hold_are_cached_before_the_finished_are_freed(start, stock):
    scheduler = start("lazy")
    scheduler.requests = {"b": request("b")}
    step(scheduler, stock, held=[11, 22])
    assert stock.asked[1:] == [("cache", "b", 22), ("update",)]
    step(scheduler, stock)
    assert stock.asked[3:] == [("update",)]


@pytest.mark.parametrize(("mode", "delays"), [("lazy", True), ("lock_step", False)])
def test_blocks_of_one_token_queries_wait_in_the_lazy_mode(start, mode, delays):
    manager = start(mode).kv_cache_manager
    assert manager.allocate_slots("request", 1) == (1, delays)
    assert manager.allocate_slots("request", 2) == (2, False)


@pytest.mark.parametrize(
    ("stop", "word_align", "each"), [((), "after", False), (("\n",), "after", True), ((), "before", True)]
)
def test_which_responses_send_each_author(start, stock, stop, word_align, each):
    scheduler, one = start(word_align=word_align), request("a", stop=stop)
    del one.tandem_authors, one.tandem_sends_each_author
    scheduler.add_request(one)
    assert (one.tandem_authors, one.tandem_sends_each_author) == ([], each)
    assert stock.asked[1:] == [("add", "a")]


def test_a_refused_request_ends_with_one_error_and_the_others_go_on(start, stock):
    scheduler = start(refuses=["a", "b"])
    scheduler.add_request(request("a", client_index=0))
    scheduler.add_request(request("b", client_index=3))
    scheduler.add_request(request("c"))
    error = RequestStatus.FINISHED_ERROR
    assert stock.asked[1:] == [("add", "a"), ("finish", "a", error), ("add", "b"), ("finish", "b", error), ("add", "c")]
    assert stock.logged == ["Request a is refused: not this one", "Request b is refused: not this one"]
    running = EngineCoreOutput("c", [7])
    found = step(scheduler, stock, running, rows=("c",), authors=(1,))
    told = {client: [(one.request_id, one.finish_reason) for one in all_.outputs] for client, all_ in found.items()}
    assert told == {0: [("c", None), ("a", FinishReason.ERROR)], 3: [("b", FinishReason.ERROR)]}
    assert step(scheduler, stock, rows=(), authors=()) == {}
