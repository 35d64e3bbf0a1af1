"""The README's table of shared weights is what the benchmark wrote."""

import json
from pathlib import Path

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
