"""`auto` follows from what the benchmarks measured."""

import json
from pathlib import Path

import pytest

from vllm_patches.tandem.mode_choice import choose_mode, drafts_for

PATCHES = Path(__file__).parents[2] / "vllm_patches"
SHARES = {"equal": 1.0, "quarter": 0.39}  # a quarter of the layers, all of the embeddings


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


def test_auto_is_within_a_tenth_of_the_best_way_in_every_cell(costs):
    assert len(costs) >= 12
    for (junior, batch, context), cell in costs.items():
        ratios = {way: row["ratio"] if isinstance(row, dict) else row for way, row in cell.items()}
        assert ratios[chosen(junior, batch)] <= 1.1 * min(ratios.values()), (junior, batch, context, ratios)
