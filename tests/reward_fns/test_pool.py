"""The pool: limits, replacement, isolation, and life beside threads, event loops, forks and a killed parent."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reward_fns.errors import OptionError, PoolError
from reward_fns.pool import Kind, Outcome, Pool

ROOT = Path(__file__).parents[2]


def test_a_value_comes_back(pool):
    started = time.monotonic()
    outcome = pool.run("pool_tasks:double", 21)
    assert (outcome.kind, outcome.value) == (Kind.DONE, 42)
    assert 0 <= outcome.seconds <= time.monotonic() - started


def test_rows_come_back_in_order(pool):
    assert [outcome.value for outcome in pool.map("pool_tasks:double", [(i,) for i in range(300)])] == list(
        range(0, 600, 2)
    )


@pytest.mark.parametrize("task", ["spin", "block_in_c", "ignore_every_signal", "endless_exception"])
def test_what_never_ends_is_killed_in_time(pool, task):
    call = pool.submit(f"pool_tasks:{task}", time_limit=0.5)
    assert call.result(timeout=30).kind is Kind.TIME_OUT
    assert pool.run("pool_tasks:double", 2).value == 4


def test_a_balloon_is_stopped_by_the_memory_limit():
    with Pool(workers=1, memory_limit=200 << 20) as small:
        assert small.run("pool_tasks:balloon").kind is Kind.MEMORY
        assert small.run("pool_tasks:double", 3).value == 6


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("fail", Kind.RAISED),
        ("leave", Kind.RAISED),
        ("endless_object", Kind.RAISED),
        ("numpy_scalar", Kind.RAISED),
        ("huge_reply", Kind.RAISED),
        ("read_nothing", Kind.CRASH),
    ],
)
def test_a_fault_is_named_and_costs_only_itself(pool, task, kind):
    arguments = ("no",) if task == "fail" else ()
    outcome = pool.run(f"pool_tasks:{task}", *arguments)
    assert outcome.kind is kind and outcome.detail
    assert pool.run("pool_tasks:double", 2).value == 4


def test_output_of_a_task_goes_nowhere(pool, capfd):
    assert pool.run("pool_tasks:print_a_lot").value == 1
    assert capfd.readouterr().out == ""


def test_a_task_that_kills_its_worker_twice_is_given_up(pool):
    assert pool.run("pool_tasks:kill_self").kind is Kind.KILLED
    assert pool.run("pool_tasks:double", 2).value == 4


def test_a_task_whose_worker_is_killed_once_is_done_again(pool, tmp_path):
    assert pool.run("pool_tasks:kill_self_once", str(tmp_path / "marker")).value == "survived"


@pytest.mark.parametrize(
    ("task", "kind"), [("spin", Kind.TIME_OUT), ("read_nothing", Kind.CRASH), ("kill_self", Kind.KILLED)]
)
def test_what_waits_behind_a_bad_task_is_done_once_all_the_same(tmp_path, task, kind):
    journal = tmp_path / "journal"
    with Pool(workers=1, preload=("pool_tasks",)) as single:
        calls = [single.submit("pool_tasks:note", str(journal), i) for i in range(20)]
        bad = single.submit(f"pool_tasks:{task}", time_limit=0.5)
        calls += [single.submit("pool_tasks:note", str(journal), i) for i in range(20, 40)]
        assert [call.result(timeout=30).value for call in calls] == list(range(40))
        assert bad.result(timeout=30).kind is kind
    assert sorted(map(int, journal.read_text().split())) == list(range(40))


def test_long_texts_travel_both_ways(pool):
    texts = ["ab" * length for length in (500_000, 4_000, 3)] * 20
    outcomes = pool.map("pool_tasks:reverse", [(text,) for text in texts])
    assert [outcome.value for outcome in outcomes] == [text[::-1] for text in texts]


def busy_loop():
    while True:
        pass


@pytest.fixture
def busy_machine():
    """Eight processes that want a processor all the time."""
    loops = [multiprocessing.get_context("fork").Process(target=busy_loop, daemon=True) for _ in range(8)]
    for loop in loops:
        loop.start()
    yield
    for loop in loops:
        loop.kill()
        loop.join()


def test_a_busy_machine_makes_no_time_outs(pool, busy_machine):
    pool.run("pool_tasks:burn", 0.01)
    started = time.monotonic()
    outcomes = pool.map("pool_tasks:burn", [(0.2,)] * 8, time_limit=0.4)
    assert {outcome.kind for outcome in outcomes} == {Kind.DONE}
    assert max(outcome.seconds for outcome in outcomes) > 0.4, "by wall clock some of them were over the limit"
    assert pool.run("pool_tasks:spin", time_limit=0.4).kind is Kind.TIME_OUT, "what takes the time itself still is"
    assert time.monotonic() - started < 120


def test_a_worker_that_gets_no_processor_is_starved_and_not_slow(pool, monkeypatch):
    monkeypatch.setattr("reward_fns.slot.STARVATION_FACTOR", 4)
    outcome = pool.run("pool_tasks:stop_self", time_limit=0.3)
    assert outcome.kind is Kind.STARVED and 1.0 < outcome.seconds < 30
    assert pool.run("pool_tasks:double", 2).value == 4


def test_killing_workers_at_random_costs_at_most_their_own_tasks(pool):
    workers = {outcome.value for outcome in pool.map("pool_tasks:whoami", [()] * 50)}
    futures = [pool.submit("pool_tasks:sleep", 0.02) for _ in range(60)]
    time.sleep(0.2)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    outcomes = [future.result(timeout=30) for future in futures]
    assert all(outcome.kind is Kind.DONE for outcome in outcomes)


def test_killing_an_idle_worker_does_not_break_the_pool(pool):
    for pid in {outcome.value for outcome in pool.map("pool_tasks:whoami", [()] * 50)}:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    assert [outcome.value for outcome in pool.map("pool_tasks:double", [(i,) for i in range(10)])] == list(
        range(0, 20, 2)
    )


def test_killing_the_fork_server_does_not_break_the_pool(pool, processes_of):
    pool.map("pool_tasks:double", [(i,) for i in range(10)])
    for pid in processes_of(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert pool.run("pool_tasks:double", 5).value == 10


def test_a_pool_that_cannot_start_says_so():
    with Pool(workers=1, preload=("no_such_module_anywhere",)) as broken:
        outcome = broken.run("pool_tasks:double", 1)
    assert outcome.kind is Kind.POOL_DOWN and "no_such_module_anywhere" in outcome.detail


def test_threads_share_a_pool(pool):
    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(lambda i: pool.run("pool_tasks:double", i), range(200)))
    assert [outcome.value for outcome in outcomes] == list(range(0, 400, 2))


def test_an_event_loop_goes_on_while_tasks_run(pool):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        outcomes = await asyncio.gather(*(pool.arun("pool_tasks:sleep", 0.2) for _ in range(4)))
        ticking.cancel()
        return ticks, outcomes

    ticks, outcomes = asyncio.run(main())
    assert ticks > 15
    assert all(outcome.kind is Kind.DONE for outcome in outcomes)


def test_a_cancelled_wait_leaves_the_pool_usable(pool):
    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.arun("pool_tasks:sleep", 1.0), 0.1)
        return await pool.arun("pool_tasks:double", 4)

    assert asyncio.run(main()).value == 8


def test_a_fork_gets_a_pool_of_its_own_and_leaves_the_parents(pool):
    assert pool.run("pool_tasks:double", 1).value == 2
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(pool.run("pool_tasks:double", 8).value).encode())
        pool.close()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read() == "16"
    os.waitpid(child, 0)
    assert pool.run("pool_tasks:double", 2).value == 4


def test_a_fork_in_the_midst_of_work_does_not_hang(pool):
    stop = threading.Event()

    def keep_busy():
        while not stop.is_set():
            pool.run("pool_tasks:double", 1)

    threads = [threading.Thread(target=keep_busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if pool.run("pool_tasks:double", 3).value == 6 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_close_ends_waiting_tasks_and_all_processes(processes_of):
    before = set(processes_of(os.getpid()))
    made = Pool(workers=2, preload=("pool_tasks",))
    futures = [made.submit("pool_tasks:sleep", 5) for _ in range(6)]
    # An earlier test's processes may still be on their way out, so only those of this pool are looked at.
    end = time.monotonic() + 30
    while len(ours := set(processes_of(os.getpid())) - before) < 3:
        assert time.monotonic() < end, "a fork server and two workers"
        time.sleep(0.1)
    made.close()
    assert {future.result(timeout=10).kind for future in futures} <= {Kind.POOL_DOWN, Kind.KILLED}
    assert not ours & set(processes_of(os.getpid()))
    with pytest.raises(PoolError):
        made.submit("pool_tasks:double", 1)


@pytest.mark.parametrize("how", ["sigkill", "exit", "unhandled"])
def test_nothing_outlives_the_parent(processes_of, how):
    script = textwrap.dedent(
        f"""
        import os, signal, sys, time
        from reward_fns.pool import Pool
        pool = Pool(workers=2, preload=("pool_tasks",))
        pool.run("pool_tasks:double", 1)
        for _ in range(4):
            pool.submit("pool_tasks:spin", time_limit=60)
        time.sleep(0.3)
        print("up", flush=True)
        if {how!r} == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        if {how!r} == "unhandled":
            raise RuntimeError
        """
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(Path(__file__).parent)]))
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert parent.stdout.readline() == b"up\n"
    parent.wait(timeout=20)
    deadline = time.monotonic() + 5
    while processes_of(parent.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(parent.pid) == []


def test_a_script_without_a_main_guard_can_use_a_pool():
    script = "from reward_fns.math import score\nprint(score('\\\\boxed{2\\\\sqrt3}', '\\\\sqrt{12}').value)\n"
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.stdout == "1.0\n", done.stderr


def test_memory_of_the_parent_stays_flat(pool):
    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    rows = [("x" * 100_000,)] * 200
    for _ in range(3):
        pool.map("pool_tasks:double", rows)
    before = resident()
    for _ in range(5):
        pool.map("pool_tasks:double", rows)
        pool.run("pool_tasks:spin", time_limit=0.05)
    assert resident() - before < 64 << 20


def test_wrong_use_is_refused_with_a_reason(pool):
    with pytest.raises(PoolError, match="top level"):
        pool.submit(lambda: 1)
    with pytest.raises(PoolError, match="pickled"):
        pool.submit("pool_tasks:double", threading.Lock())
    for limits in ({"workers": 0}, {"time_limit": 0}, {"memory_limit": -1}, {"retries": -1}):
        with pytest.raises(OptionError):
            Pool(**limits)


def test_outcomes_are_values():
    assert Outcome(Kind.DONE, 1) == Outcome(Kind.DONE, 1)
