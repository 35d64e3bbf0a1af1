"""Speed of the similarity filter, in CPU time: `python tests/benchmarks/serl_similarity.py` prints one line of JSON.

`seeds_ratio` is one candidate against 500 seeds, a rouge-score loop over ours; `history_seconds` is 2,000 instructions
(or as many as the first argument says), each compared with a pool of 20,000 and decided at the threshold.
"""

import json
import random
import statistics
import sys
import time

from rouge_score.rouge_scorer import RougeScorer

from recipes.serl.similarity import RougeIndex

THRESHOLD = 0.7


def instruction(rng: random.Random) -> str:
    """A text with the word frequencies (Zipf) and the length of mathematical word problems, 15 to 80 words."""
    return " ".join(f"w{int(rng.paretovariate(0.7)) % 5000}" for _ in range(rng.randint(15, 80)))


def cpu_seconds(work, repeats: int = 1) -> float:
    start = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - start) / repeats


def seeds_ratio(rng: random.Random, *, n_seeds: int = 500, n_candidates: int = 5) -> int:
    """Median over candidates of the interleaved ratio."""
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    seeds = [instruction(rng) for _ in range(n_seeds)]
    index = RougeIndex(seeds)
    ratios = []
    for _ in range(n_candidates):
        candidate = instruction(rng)
        loop = cpu_seconds(lambda c=candidate: max(scorer.score(c, s)["rougeL"].fmeasure for s in seeds))
        ratios.append(loop / cpu_seconds(lambda c=candidate: index.max_rouge_l(c), 50))
    return round(statistics.median(ratios))


def history_seconds(rng: random.Random, *, n_candidates: int, n_pool: int = 20_000) -> float:
    """CPU seconds of the decisions, the growth of the pool included."""
    pool = [instruction(rng) for _ in range(n_pool)]
    candidates = [instruction(rng) for _ in range(n_candidates)]

    def decide() -> None:
        index = RougeIndex(pool)
        for candidate in candidates:
            if index.max_rouge_l(candidate, floor=THRESHOLD) <= THRESHOLD:
                index.add(candidate)

    return cpu_seconds(decide)


def main() -> None:
    rng = random.Random(0)
    n_candidates = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    result = {
        "seeds_ratio": seeds_ratio(rng),
        "history_candidates": n_candidates,
        "history_seconds": round(history_seconds(rng, n_candidates=n_candidates), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
