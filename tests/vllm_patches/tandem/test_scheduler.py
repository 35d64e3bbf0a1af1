"""What the scheduler adds to vLLM's where no healthy engine goes: refused, gone and cut-off requests."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("vllm")

from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason  # noqa: E402

from vllm_patches.tandem import scheduler as scheduler_module  # noqa: E402
from vllm_patches.tandem.scheduler import TandemScheduler  # noqa: E402


def request(name="a", client=0, authors=(), extra_args=None):
    return SimpleNamespace(
        request_id=name,
        sampling_params=SimpleNamespace(stop=[], extra_args=extra_args),
        tandem_authors=list(authors),
        tandem_sends_each_author=False,
        client_index=client,
    )


@pytest.fixture
def scheduler(monkeypatch):
    """A tandem scheduler over a stock one that gives ``outputs``; it refuses requests "a" and "b"."""

    def check(one):
        if one.request_id in ("a", "b"):
            raise ValueError("not this one")
        return SimpleNamespace(params=SimpleNamespace(word_align="after"))

    def start(scheduler):
        scheduler.vllm_config, scheduler.requests, scheduler.outputs, scheduler.finished = None, {}, {}, []

    rules = SimpleNamespace(mode="lock_step", config=None, check=check)
    monkeypatch.setattr(scheduler_module, "RequestRules", lambda config: rules)
    monkeypatch.setattr(Scheduler, "__init__", start)
    monkeypatch.setattr(Scheduler, "add_request", lambda *_: None)
    monkeypatch.setattr(Scheduler, "finish_requests", lambda scheduler, name, status: scheduler.finished.append(name))
    monkeypatch.setattr(Scheduler, "update_from_output", lambda scheduler, *_: scheduler.outputs)
    return TandemScheduler()


def step(scheduler, *outputs, rows=("a", "b")):
    """One update with these outputs of client 0; returns what all clients get."""
    scheduler.outputs = {0: EngineCoreOutputs(outputs=list(outputs))} if outputs else {}
    told = SimpleNamespace(
        req_id_to_index={name: row for row, name in enumerate(rows)}, tandem_authors=np.array([1, 0])
    )
    return scheduler.update_from_output(SimpleNamespace(num_scheduled_tokens=dict.fromkeys(rows, 1)), told)


def test_an_end_without_a_token_sends_the_mask_and_of_several_responses_none_stands_for_all(scheduler):
    scheduler.requests = {"a": request("a", authors=[1, 0], extra_args={"tandem_responses": 2})}
    ended = EngineCoreOutput("a", [], finish_reason=FinishReason.ABORT)
    step(scheduler, ended)
    assert ended.routed_experts.ravel().tolist() == [1, 0] and ended.kv_transfer_params is None


def test_outputs_of_requests_that_are_gone_pass(scheduler):
    gone = EngineCoreOutput("a", [7])
    assert step(scheduler, gone)[0].outputs == [gone] and gone.routed_experts is None


def test_a_step_of_several_tokens_is_an_error(scheduler):
    scheduler.requests = {"a": request("a")}
    with pytest.raises(RuntimeError, match="emitted 2 tokens"):
        step(scheduler, EngineCoreOutput("a", [7, 8]))


def test_a_refused_request_ends_with_one_error_at_its_own_client_and_the_others_go_on(scheduler):
    for one in (request("a"), request("b", client=3), request("c")):
        scheduler.add_request(one)
    assert scheduler.finished == ["a", "b"]
    found = step(scheduler, EngineCoreOutput("c", [7]), rows=("c",))
    told = {client: [(one.request_id, one.finish_reason) for one in all_.outputs] for client, all_ in found.items()}
    assert told == {0: [("c", None), ("a", FinishReason.ERROR)], 3: [("b", FinishReason.ERROR)]}
    assert step(scheduler, rows=()) == {}
