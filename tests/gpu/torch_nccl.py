"""torch_nccl.py: collectives over two GPUs, one process each; every tensor is dropped at once."""

import os
import socket

os.environ["NCCL_NVLS_ENABLE"] = "0"
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world, port, answers):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank)
    )
    wrong = 0
    for i in range(60):
        n = 1000 * (1 + i * 37 % 50) + i
        x = torch.full((n,), float(rank + 1 + i), device="cuda")
        dist.all_reduce(x)
        y = [torch.empty(n, device="cuda") for _ in range(world)]
        dist.all_gather(y, torch.full((n,), float(rank), device="cuda"))
        z = torch.full((n,), float(rank), device="cuda")
        dist.broadcast(z, src=i % world)
        wrong += int((x != float(sum(r + 1 + i for r in range(world)))).sum())
        wrong += sum(int((y[r] != float(r)).sum()) for r in range(world)) + int(
            (z != float(i % world)).sum()
        )
        del x, y, z
    dist.barrier()
    answers.put((rank, wrong))
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    mp.spawn(work, args=(2, port, answers), nprocs=2)
    for rank, wrong in sorted(answers.get() for _ in range(2)):
        print(f"rank {rank}: {wrong} values wrong")
