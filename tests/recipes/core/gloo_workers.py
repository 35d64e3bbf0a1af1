"""Two actor and two rollout workers, processes of their own, update weights twice as verl's manager has them do.

Usage: gloo_workers.py FOLDER [die | stall]. Saves what each process sent or received to FOLDER, or writes why it could
not; with a second argument one rollout worker leaves or stops in the middle.
"""

import asyncio
import multiprocessing
import os
import sys
import time
from pathlib import Path

import torch

from recipes.core.gloo_checkpoint_engine import GlooCheckpointEngine, WeightTransferError

UPDATES = 2


def named_weights(update):
    """Of several types and sizes: odd ones, and one of no dimension."""
    generator = torch.Generator().manual_seed(update)
    shapes = [
        ("odd", (7,)),
        ("scalar", ()),
        ("matrix", (9, 11)),
        ("large", (40, 31)),
        ("small", (3,)),
        ("huge", (2503,)),
    ]
    for name, shape in shapes:
        for dtype in (torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool):
            yield f"{name}.{dtype}", (torch.randn(shape, generator=generator) * 100).to(dtype)


async def received(engine, fault):
    # Held to the end, so that one that is written again would show.
    weights = {}
    async for name, weight in engine.receive_weights(global_steps=0):
        weights[name] = weight
        if fault == "die" and len(weights) == 12:
            os._exit(1)
        if fault == "stall" and len(weights) == 12:
            time.sleep(60)
    return weights


def work(folder, kind, index, pipe, fault):
    engine = GlooCheckpointEngine(
        1000, is_master=(kind, index) == ("actor", 0), timeout_seconds=4.0 if fault == "stall" else 60.0
    )
    for update in range(UPDATES):
        pipe.send(engine.prepare())
        engine.init_process_group(**pipe.recv())
        try:
            if kind == "actor":
                weights = {}
                drawn = ((name, weights.setdefault(name, weight)) for name, weight in named_weights(update))
                asyncio.run(engine.send_weights(drawn, global_steps=update))
            else:
                weights = asyncio.run(received(engine, fault if index == 1 else None))
        except WeightTransferError as error:
            (folder / f"{kind}{index}.txt").write_text(str(error))
            return
        pipe.send("done")
        pipe.recv()
        engine.finalize()
        torch.save(weights, folder / f"{kind}{index}.{update}.pt")


def main(folder, fault=None):
    context = multiprocessing.get_context("fork")
    names = [(kind, index) for kind in ("actor", "rollout") for index in range(2)]
    pipes, processes = [context.Pipe() for _ in names], []
    for (kind, index), (_, end) in zip(names, pipes, strict=True):
        processes.append(context.Process(target=work, args=(folder, kind, index, end, fault)))
        processes[-1].start()
    ends = [end for end, _ in pipes]
    for _ in range(UPDATES):
        metadata = [end.recv() for end in ends]
        arguments = GlooCheckpointEngine.build_topology(2, 2, metadata)
        per_worker = [
            {key: values[index] for key, values in arguments[kind == "rollout"].items()} for kind, index in names
        ]
        for end, kwargs in zip(ends, per_worker, strict=True):
            end.send(kwargs)
        if fault:
            break
        for end in ends:
            assert end.recv() == "done"
        for end in ends:
            end.send("finalize")
    deadline = time.monotonic() + 40
    # With a fault these two are told by their group; the other actor rank waits for its finalize for ever.
    for process in (processes[0], processes[2]) if fault else processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.kill()
        process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
