"""Check whether this environment, or a Ray cluster, can run the recipes.

    python -m recipes.doctor [--quick] [--json] [--verbose] [--ray]

Versions and names are answered within about a second; what has to import verl, vLLM and torch follows, with a line per
check. `--quick` stops after the first part. Exit code 0 only if nothing failed. A notice (no accelerator, no
flash-attn) fails nothing: recipes run, differently. `--ray` joins the cluster named by RAY_ADDRESS, or the one running
on this machine, and examines every live node of it; it never starts one.
"""

import argparse
import json
import sys

from recipes.doctor import environment
from recipes.doctor.cluster import NoClusterError, compare_nodes, examine_cluster
from recipes.doctor.environment import FAILURE, OK, Finding
from recipes.doctor.report import failed, render


def announce(line: str) -> None:
    """Print a line of progress on stderr, where it does not mix with --json."""
    print(f"doctor: {line}", file=sys.stderr, flush=True)


def examine_machine(quick: bool) -> list[Finding]:
    """The findings of this machine; says after the quick part what it found, and what the slow part is doing."""
    findings = environment.quick_survey()
    failures = [finding for finding in findings if finding.state == FAILURE]
    verdict = (
        f"{len(failures)} failures, first: {failures[0].item}: {failures[0].detail}" if failures else "as expected"
    )
    announce(f"versions, packages and names: {verdict}")
    if quick:
        return findings
    announce("importing verl, vLLM and torch in child processes, about a quarter of a minute ...")
    return findings + environment.slow_survey(announce)


def examine_nodes() -> dict[str, list[Finding]]:
    """The findings of every node of the running cluster, and how the nodes compare."""
    try:
        nodes = examine_cluster()
    except NoClusterError as error:
        return {"cluster": [Finding("cluster", "connection", FAILURE, str(error))]}
    nodes["cluster"] = compare_nodes(nodes) or [Finding("cluster", "versions", OK, "the same on every node")]
    return nodes


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only what needs no import of verl, vLLM or torch")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--verbose", action="store_true", help="also print tracebacks")
    parser.add_argument("--ray", action="store_true", help="examine every node of the running Ray cluster")
    options = parser.parse_args(arguments)
    nodes = examine_nodes() if options.ray else {"this machine": examine_machine(options.quick)}
    if options.json:
        listing = {name: environment.as_rows(findings) for name, findings in nodes.items()}
        print(json.dumps({"ok": not failed(nodes), "nodes": listing}, indent=2))
    else:
        render(nodes, options.verbose)
    return 1 if failed(nodes) else 0


if __name__ == "__main__":
    sys.exit(main())
