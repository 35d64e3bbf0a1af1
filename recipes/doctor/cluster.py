"""Examine every node of a running Ray cluster, and compare the nodes' versions."""

import os

from recipes.doctor.environment import FAILURE, Finding
from recipes.doctor.probes import last_line

_NODE_SECONDS = 600


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
