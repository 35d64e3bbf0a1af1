"""The tables of costs are what the benchmarks wrote, and `auto` follows from them."""

import json
from pathlib import Path

import pytest

from vllm_patches.tandem.mode_choice import choose_mode, drafts_for

PATCHES = Path(__file__).parents[2] / "vllm_patches"
NAMES = {
    "single": "the adapted senior alone",
    "own": "lock-step, a junior with a copy",
    "shared": "lock-step, shared, one pass",
}


def rows(records: dict[str, dict]) -> list[str]:
    single = records["single"]
    found = []
    for way, name in NAMES.items():
        cells = [f"{records[way][size]:,.0f} MiB" for size in ("weights_mib", "resident_mib")]
        for batch in ("ms_1", "ms_4", "ms_16"):
            ratio = "" if way == "single" else f", {records[way][batch] / single[batch]:.2f}"
            cells.append(f"{records[way][batch]:.0f} ms{ratio}")
        found.append(f"| {name} | {' | '.join(cells)} |")
    return found


def test_the_table_of_shared_weights_is_the_benchmarks():
    lines = (PATCHES / "results" / "shared_weights.jsonl").read_text().splitlines()
    records = {record["way"]: record for record in map(json.loads, lines)}
    text = (PATCHES / "README.md").read_text().splitlines()
    assert [row for row in rows(records) if row not in text] == []


SHARES = {"equal": 1.0, "quarter": 0.39}  # a quarter of the layers, all of the embeddings
DRAFTS = (2, 4, 8)


@pytest.fixture(scope="module")
def costs() -> dict[tuple[str, int, int], dict]:
    """Per emitted token over the senior alone, by (junior, batch, context) and way: a number of drafts, or a mode."""
    found: dict[tuple[str, int, int], dict] = {}
    for file in ("speculative_cost.jsonl", "turns_cost.jsonl"):
        for row in map(json.loads, (PATCHES / "results" / file).read_text().splitlines()):
            cell = found.setdefault((row["junior"], row["batch"], row["context"]), {})
            if "drafts" in row:
                cell[row["drafts"]] = row
            else:
                cell |= {mode: row[f"{mode}_ratio_of_means"] for mode in ("lazy", "lock_step")}
    return found


def chosen(junior: str, batch: int) -> str | int:
    """The way that `auto` takes on this machine: a mode, or the most drafts of the speculative one."""
    mode, _ = choose_mode("auto", "after", False, False, SHARES[junior], batch)
    return drafts_for(SHARES[junior], 0.5) if mode == "speculative" else mode


def cost_rows(costs: dict) -> list[str]:
    found = []
    for (junior, batch, context), cell in costs.items():
        drafts = [f"{cell[k]['ratio']:.2f} ({cell[k]['per_round']:.1f})" if k in cell else "-" for k in DRAFTS]
        single = [row["single_ms"] for row in cell.values() if isinstance(row, dict)]
        way = chosen(junior, batch)
        taken = f"K {way}" if isinstance(way, int) else way.replace("_", "-")
        turns = [f"{cell[mode]:.2f}" for mode in ("lazy", "lock_step")]
        cells = [junior, str(batch), str(context), f"{sum(single) / len(single):.0f}", *drafts, *turns, taken]
        found.append(f"| {' | '.join(cells)} |")
    return found


def test_the_table_of_speculative_costs_is_the_benchmarks(costs):
    text = (PATCHES / "REFERENCE.md").read_text().splitlines()
    assert [row for row in cost_rows(costs) if row not in text] == []


def test_auto_is_within_a_tenth_of_the_best_way_in_every_cell(costs):
    assert len(costs) >= 12
    for (junior, batch, context), cell in costs.items():
        ratios = {way: row["ratio"] if isinstance(row, dict) else row for way, row in cell.items()}
        assert ratios[chosen(junior, batch)] <= 1.1 * min(ratios.values()), (junior, batch, context, ratios)
