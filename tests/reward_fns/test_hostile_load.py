"""Eight inputs that hang or balloon among two hundred good ones, two workers: the promise of the package in
one test."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from reward_fns.majority import majority_vote
from reward_fns.math import read_options, score_batch

LIMIT = 2.0
WORKERS = 2
HOSTILE = [
    "5^{5^{5^{5}}}",
    "2^{30^6}+1",
    "(10^9)!",
    "1000000!",
    r"\binom{10^7}{5\cdot 10^6}",
    r"\sum_{k=1}^{10^8} \frac{1}{k^2+1}",
    "(" * 2000 + "42" + ")" * 2000,
    "9" * 1_000_000,
]
GOOD = [(rf"\boxed{{{n}\sqrt{{3}}}}", rf"\sqrt{{{3 * n * n}}}", 1.0) for n in range(2, 102)]
GOOD += [(rf"\boxed{{{n}\sqrt{{3}}}}", rf"\sqrt{{{3 * n * n + 1}}}", 0.0) for n in range(2, 102)]


def mixed():
    rows = list(GOOD)
    for place, text in enumerate(HOSTILE):
        rows.insert(13 + 25 * place, (rf"\boxed{{{text}}}", r"\sqrt{2}", 0.0))
    return rows


def judged(rows, **options):
    options = {"time_limit": LIMIT, "workers": WORKERS} | options
    return score_batch([r for r, _, _ in rows], [g for _, g, _ in rows], **options)


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.fixture(scope="module", autouse=True)
def warm():
    judged(GOOD[:8])


def test_good_ones_are_right_and_nothing_is_left_behind(processes_of):
    before = resident()
    rows = mixed()
    started = time.monotonic()
    results = judged(rows)
    assert [result.value for result in results] == [value for _, _, value in rows]
    assert time.monotonic() - started < 120
    assert resident() - before < 64 << 20
    time.sleep(0.2)
    assert len(processes_of(os.getpid())) <= 4 * (WORKERS + 1), "workers are replaced, not added"
    reasons = {
        result.reason for result, (response, _, _) in zip(results, rows, strict=True) if response[7:-1] in HOSTILE
    }
    assert reasons == {"wrong", "too_long"}, "strict mode works nothing out to its end"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_five_hundred_right_answers_beside_sixteen_busy_loops():
    right = [row for row in 5 * GOOD if row[2] == 1.0]
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(16)]
    try:
        strict, lenient = judged(right), judged(right, mode="lenient")
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert len(right) == 500
    assert [result.value for result in strict + lenient] == [1.0] * 1000


def test_a_hostile_answer_in_a_vote_costs_its_limit_and_no_more():
    responses = [response for response, _, _ in GOOD[:6]] + [rf"\boxed{{{HOSTILE[0]}}}"] + [r"\boxed{2\sqrt3}"] * 3
    started = time.monotonic()
    vote = majority_vote(responses, time_limit=LIMIT)
    assert time.monotonic() - started < 4 * LIMIT
    assert vote.rewards[0] == 1.0 and vote.rewards[-3:] == (1.0,) * 3 and vote.abstained == 1


def test_a_killed_worker_costs_at_most_its_own_sample(processes_of):
    stop = threading.Event()
    killed = []
    servers = {read_options({"workers": WORKERS}).pool()._fork_server.pid}

    def kill_now_and_then():
        while not stop.wait(0.5):
            workers = [pid for pid in processes_of(os.getpid()) if pid not in servers]
            if workers:
                try:
                    os.kill(workers[len(killed) % len(workers)], signal.SIGKILL)
                    killed.append(workers[0])
                except ProcessLookupError:
                    pass

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        # The lenient mode is slow enough to be hit.
        results = judged(GOOD, mode="lenient")
    finally:
        stop.set()
        killer.join()
    expected = [value for _, _, value in GOOD]
    lost = [result for result, value in zip(results, expected, strict=True) if getattr(result, "value", None) != value]
    assert all(getattr(result, "reason", "") == "worker_killed" for result in lost)
    assert killed and len(lost) <= len(killed)
