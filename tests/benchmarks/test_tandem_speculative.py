"""The speculative mode costs what its table says, with slack for a busy machine: a real engine, CPU time."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("vllm")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("bench", Path(__file__).with_name("tandem_speculative.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("junior", "most"), [("quarter", {1: 0.85, 4: 1.05}), ("equal", {1: 1.45, 4: 1.8})], ids=["quarter", "equal"]
)
def test_an_emitted_token_against_the_senior_alone(benchmark, junior, most, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    benchmark.torch.set_num_threads(1)
    benchmark.save_pair(tmp_path, junior, agreement=0.93)
    bench = benchmark.Bench(tmp_path, max_drafts=4, max_seqs=4, kv_bytes=1 << 29)
    try:
        for batch, bound in most.items():
            (row,) = benchmark.measure(bench, batch, 64, [4], num_tokens=96 // batch)
            assert row["acceptance"] > 0.75 and row["per_round"] > 3, row
            assert row["ratio"] < bound, row
    finally:
        bench.engine.engine_core.shutdown()
