"""torch_share.py: CUDA tensors and views handed to another process and changed there in place."""

import torch
import torch.multiprocessing as mp


def other(tasks, answers):
    while (task := tasks.get()) is not None:
        i, tensor = task
        answers.put((i, float(tensor.double().sum())))
        tensor.mul_(2)
        torch.cuda.synchronize()
        del tensor, task
        answers.put(None)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    tasks, answers = context.Queue(), context.Queue()
    child = context.Process(target=other, args=(tasks, answers))
    child.start()
    wrong = 0
    for i in range(24):
        whole = torch.arange(100 * (i + 1) ** 2, device="cuda", dtype=torch.float32)
        part = whole[i : i + 50] if i % 2 else whole
        expected = float(part.double().sum())
        torch.cuda.synchronize()
        tasks.put((i, part))
        j, got = answers.get(timeout=60)
        answers.get(timeout=60)
        wrong += j != i or got != expected or float(part.double().sum()) != 2 * expected
        del whole, part
    tasks.put(None)
    child.join(60)
    print(f"{wrong} of 24 wrong, the child ended with {child.exitcode}")
