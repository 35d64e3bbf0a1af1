"""Is this environment, or this Ray cluster, fit to run the recipes?

    python -m recipes.doctor [--json] [--verbose] [--ray]

Exit code 0 only if nothing failed. A notice (no accelerator, no flash-attn) fails nothing: recipes run, differently.
`--ray` joins the cluster named by RAY_ADDRESS, or the one running on this machine, and examines every live node of it;
it never starts one.
"""

import argparse
import json
import os
import sys

from recipes.doctor import environment
from recipes.doctor.environment import FAILURE, NOTICE, OK, Finding
from recipes.doctor.probes import last_line

_NODE_SECONDS = 600
_FILE_WIDTH = 140
_COLOURS = {OK: "green", NOTICE: "yellow", FAILURE: "bold red"}
# Long and dull when all is well: one line each, unless --verbose.
_FOLDED = ("verl ledger", "vllm ledger")


class NoClusterError(RuntimeError):
    """There is no running Ray cluster to join."""


def examine_cluster() -> dict[str, list[Finding]]:
    """Survey every live node of the running Ray cluster, keyed by "address (id)".

    Raises:
        NoClusterError: no cluster is running where RAY_ADDRESS, or its absence, says to look.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    address = os.environ.get("RAY_ADDRESS") or "auto"
    if address == "local" or address.startswith(("http://", "https://")):
        raise NoClusterError(
            f"RAY_ADDRESS={address} does not name a running cluster to join; set it to auto, host:port or ray://host:port"
        )
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except ConnectionError as error:
        reason = last_line(str(error.__cause__ or error))
        raise NoClusterError(f"cannot join a Ray cluster at {address}, is one running (ray start)? {reason}") from error

    # A nested function travels by value, so that a node without this package answers with the ImportError it has.
    def examine() -> list[dict[str, str]]:
        from recipes.doctor.environment import as_rows, survey

        return as_rows(survey())

    try:
        remote = ray.remote(num_cpus=0, max_retries=0)(examine)
        pending = {
            f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})": remote.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote()
            for node in ray.nodes()
            if node["Alive"]
        }
        return {name: _await_node(reference) for name, reference in pending.items()}
    finally:
        ray.shutdown()


def _await_node(reference) -> list[Finding]:
    import ray

    try:
        return [Finding(**row) for row in ray.get(reference, timeout=_NODE_SECONDS)]
    except ray.exceptions.GetTimeoutError:
        return [Finding("node", "answer", FAILURE, f"none within {_NODE_SECONDS} s")]
    except ray.exceptions.RayError as error:
        last = str(error).strip().splitlines()[-1]
        return [Finding("node", "answer", FAILURE, last, "install the same verl-duets on every node")]


def compare_nodes(nodes: dict[str, list[Finding]]) -> list[Finding]:
    """Failures for every version that differs between nodes; empty when they agree."""
    seen: dict[str, dict[str, list[str]]] = {}
    for node, findings in nodes.items():
        for finding in findings:
            if finding.section == "versions":
                version = finding.detail.split()[0].rstrip(":")
                seen.setdefault(finding.item, {}).setdefault(version, []).append(node)
    return [
        Finding(
            "cluster",
            item,
            FAILURE,
            "differs between nodes: " + "; ".join(f"{version} on {', '.join(where)}" for version, where in by.items()),
            "install the same version on every node",
        )
        for item, by in seen.items()
        if len(by) > 1
    ]


def failed(nodes: dict[str, list[Finding]]) -> bool:
    """Whether any node has a failure."""
    return any(finding.state == FAILURE for findings in nodes.values() for finding in findings)


def render(nodes: dict[str, list[Finding]], verbose: bool = False) -> None:
    """Print one table per node and a closing sentence."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    for node, findings in nodes.items():
        table = Table(title=node, title_justify="left", show_lines=False)
        for column in ("area", "item", "state", "detail"):
            table.add_column(column, overflow="fold")
        folded = {} if verbose else {section: 0 for section in _FOLDED}
        for finding in findings:
            if finding.state == OK and finding.section in folded:
                folded[finding.section] += 1
                continue
            text = escape(finding.detail) + (f"\n[bold]-> {escape(finding.remedy)}[/]" if finding.remedy else "")
            if verbose and finding.trace:
                text += f"\n[dim]{escape(finding.trace.rstrip())}[/]"
            colour = _COLOURS[finding.state]
            table.add_row(finding.section, escape(finding.item), f"[{colour}]{finding.state}[/]", text)
        for section, count in folded.items():
            if count:
                table.add_row(section, f"{count} symbols", f"[{_COLOURS[OK]}]{OK}[/]", "as expected")
        console.print(table)
    counts = {state: sum(f.state == state for findings in nodes.values() for f in findings) for state in _COLOURS}
    verdict = "[bold red]Not fit to run.[/]" if counts[FAILURE] else "[green]All is well.[/]"
    console.print(f"{verdict} {counts[FAILURE]} failures, {counts[NOTICE]} notices, {counts[OK]} checks passed.")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--verbose", action="store_true", help="also list ledger rows that are as expected, and tracebacks"
    )
    parser.add_argument("--ray", action="store_true", help="examine every node of the running Ray cluster")
    options = parser.parse_args(arguments)
    if options.ray:
        try:
            nodes = examine_cluster()
            nodes["cluster"] = compare_nodes(nodes) or [Finding("cluster", "versions", OK, "the same on every node")]
        except NoClusterError as error:
            nodes = {"cluster": [Finding("cluster", "connection", FAILURE, str(error))]}
    else:
        nodes = {"this machine": environment.survey()}
    if options.json:
        listing = {name: environment.as_rows(findings) for name, findings in nodes.items()}
        print(json.dumps({"ok": not failed(nodes), "nodes": listing}, indent=2))
    else:
        render(nodes, options.verbose)
    return 1 if failed(nodes) else 0


if __name__ == "__main__":
    sys.exit(main())
