"""A user's reward function that is up to no good, in the worker process in which the reward manager runs it."""

import os
import socket
from pathlib import Path

import pytest

from recipes.common import confinement
from recipes.common.reward_call import load_function
from reward_fns.pool import Pool

PATH = str(Path(__file__).with_name("hostile_reward.py"))
ATTEMPTS = load_function(PATH, "ATTEMPTS")
pytestmark = pytest.mark.skipif(bool(confinement.why_not()), reason=confinement.why_not())


@pytest.fixture(scope="module")
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def pool():
    """As the reward manager's, in a process whose environment holds a key."""
    os.environ["CANARY_API_KEY"] = "canary-7c1f"
    with Pool(1, time_limit=30, memory_limit=1 << 30, preload=()) as pool:
        yield pool
    os.environ.pop("CANARY_API_KEY", None)


def judge(pool, attempt, folder, port, allow):
    arguments = {"data_source": "toy", "solution_str": attempt, "ground_truth": ""}
    arguments["extra_info"] = {"folder": str(folder), "port": port}
    return pool.run("recipes.common.reward_call:call", PATH, "compute_score", arguments, allow)


def refusal(attempt: str) -> str:
    """Python's own module says it in another way when limits may not be raised."""
    return "raised_ValueError: not allowed" if attempt == "limits" else "raised_PermissionError"


@pytest.mark.parametrize("attempt", [name for name in ATTEMPTS if name != "memory"])
def test_every_attempt_is_contained_and_reported(pool, attempt, tmp_path, listener):
    (tmp_path / "there").write_text("old")
    outcome = judge(pool, attempt, tmp_path, listener, [])
    assert outcome.value["status"] == "skip", outcome
    assert outcome.value["reason"].startswith(refusal(attempt)), outcome
    assert attempt == "limits" or "algorithm.reward_faults.allow" in outcome.value["reason"]
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "old" and (tmp_path / "there").stat().st_mode & 0o400
    assert not Path("/dev/shm/hostile").exists()


def test_memory_is_the_limit_of_the_pool(pool, tmp_path, listener):
    assert judge(pool, "memory", tmp_path, listener, []).kind.value == "memory"


def test_what_needs_nothing_works(pool, tmp_path, listener):
    assert judge(pool, "harmless", tmp_path, listener, []).value["score"] == 1.0


@pytest.mark.parametrize(
    ("permission", "attempts"),
    [
        ("network", ["connect", "datagram"]),
        ("processes", ["program"]),
        ("files", ["write", "append", "truncate", "chmod"]),
        ("environment", ["keys"]),
    ],
)
def test_each_permission_gives_back_its_own(permission, attempts, tmp_path, listener):
    """The negative control: what was refused above works where it is allowed, and nothing else does."""
    there = tmp_path / "there"
    os.environ["CANARY_API_KEY"] = "canary-7c1f"
    try:
        with Pool(1, time_limit=30, memory_limit=1 << 30, preload=()) as pool:
            for attempt in ATTEMPTS.keys() - {"memory", "kill", "killpg", "fork"}:
                there.unlink(missing_ok=True)
                there.write_text("old")
                outcome = judge(pool, attempt, tmp_path, listener, [permission])
                if attempt in attempts:
                    assert outcome.value["score"] == 1.0, (attempt, outcome)
                elif not (permission == "files" and attempt in ("remove", "rename", "shared memory", "anonymous file")):
                    assert outcome.value["reason"].startswith(refusal(attempt)), (attempt, outcome)
    finally:
        os.environ.pop("CANARY_API_KEY", None)
        Path("/dev/shm/hostile").unlink(missing_ok=True)
        Path("/tmp/elsewhere").unlink(missing_ok=True)


def test_secrets_are_known_by_their_names():
    for name in (
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "db_password",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ):
        assert confinement.SECRET.fullmatch(name)
    for name in ("PATH", "HOME", "OMP_NUM_THREADS", "LD_LIBRARY_PATH"):
        assert not confinement.SECRET.fullmatch(name)
