"""What an empty Ray actor keeps of each call, by what it returns: an actor's handle, as verl's balancer, or text.

    python tests/faults/handle_memory.py --calls 32000

Prints the memory that is the actor's own (USS, MB) at every quarter of the calls.
"""

import argparse
import os

import psutil
import ray


@ray.remote(num_cpus=0)
class Server:
    """What the handle stands for."""


@ray.remote(num_cpus=0)
class Balancer:
    def __init__(self, server):
        self.server = server

    def megabytes(self) -> float:
        return round(psutil.Process(os.getpid()).memory_full_info().uss / (1 << 20), 1)

    def acquire(self, what: str):
        return "server", self.server if what == "handle" else "no handle"


@ray.remote(num_cpus=0)
class Client:
    def call(self, balancer, what: str, calls: int) -> None:
        for _ in range(calls):
            ray.get(balancer.acquire.remote(what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=32000)
    options = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    server, client = Server.remote(), Client.remote()
    for what in ("handle", "text"):
        balancer, course = Balancer.remote(server), []
        for _ in range(4):
            ray.get(client.call.remote(balancer, what, options.calls // 4))
            course.append(ray.get(balancer.megabytes.remote()))
        print(f"{what}: {course} MB after each {options.calls // 4} calls", flush=True)


if __name__ == "__main__":
    main()
