# SPDX-License-Identifier: Apache-2.0
# Time limit: 480 s
"""The linker on SGLang's own pools, over two and four processes that talk by gloo: latent pages once, state and draft of each rank,
a state that is gone, an event that comes late."""
import multiprocessing
import os
import socket
import sys

from support import check, done
from support.store import Store

CONFIG = {"model_id": "classes", "lookup_ms": 10_000, "load_ms": 30_000, "put_ms": 30_000}
PAGES = 6


def rank_process(rank, ranks, port, address, results):
    """One rank: puts, forgets, restores; then without the state of rank 1."""
    sys.path.insert(0, os.path.dirname(__file__))
    import _pools as p
    import torch
    import torch.distributed as dist
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    from kvonce.sglang import Linker

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    said = []

    def agreed(lengths, pages):
        """What SGLang makes of the ranks' answers: the lengths that all of them gave."""
        mask = torch.zeros(pages + 1, dtype=torch.int)
        for n in lengths:
            mask[n] = 1
        dist.all_reduce(mask, dist.ReduceOp.MIN)
        return mask.nonzero().flatten().tolist()

    def wait_offloads(linker, n):
        import time
        deadline = time.monotonic() + 30
        while linker.num_completed_offloads() < n:
            if time.monotonic() > deadline:
                raise TimeoutError("an offload is not done")
            time.sleep(0.002)

    with p.place(rank, ranks) as server_args:
        pool, requests = p.kimi(ranks)
        draft = p.mha(layers=1)
        components = {ComponentType.FULL, ComponentType.MAMBA}
        made = p.params(pool, requests, components, sidecar_draft_device_pools=(draft,), tp_cache_group=dist.group.WORLD)
        linker = Linker(server_args, made, components=components, extra_config={"store": address, **CONFIG}, forward_stream=None)
        said.append(("nothing was refused", linker.core.refusal == "", linker.core.refusal))
        latent = pool.full_kv_pool.kv_buffer
        states = [linker.pools[name].components for name in linker.pools if str(name) == "mamba"][0]
        states = [layer for component in states for layer in component]
        drafts = [*draft.k_buffer, *draft.v_buffer]

        def snapshot(page, slot):
            rows = p.slots(page, PAGES)
            return [t[rows].clone() for t in (*latent, *drafts)] + [t[slot].clone() for t in states]

        # The latent rows are the same on all ranks; state and draft rows are not.
        p.fill(latent, 1)
        p.fill(drafts, 100 + rank)
        p.fill(states, 200 + rank)
        names = p.keys("prompt", PAGES)
        wanted = snapshot(2, 3)
        accepted = linker.offload([p.kv(names, p.slots(2, PAGES)), p.state(names[-1], 3)])
        wait_offloads(linker, 1)
        said.append(("an offload is stored", accepted and linker.pop_completed_offload()))
        dist.barrier()

        lengths = agreed(linker.lookup("r1", [p.kv(names), p.state(names[-1])]), PAGES)
        said.append(("the prefix ends where the state is", lengths == [PAGES], lengths))
        p.fill([*latent, *drafts, *states], 999)
        loaded = linker.load("r1", [p.kv(names, p.slots(12, PAGES)), p.state(names[-1], 7)])
        index = linker.start_layer_wise_loading()
        linker.layer_done_counter.set_consumer(index)
        for layer in range(linker.layer_done_counter.num_layers):
            linker.layer_done_counter.wait_until(layer)
        landed = torch.tensor([int(linker.finish_layer_wise_loading(index))])
        dist.all_reduce(landed, dist.ReduceOp.MIN)
        got = snapshot(12, 7)
        same = all(torch.equal(a, b) for a, b in zip(got, wanted))
        said.append(("latent, draft and state rows come back byte for byte", loaded and bool(landed.item()) and same))
        linker.num_completed_offloads()

        # An event that comes late: what is put is what the rows hold then.
        late = [False]
        linker.record_offload_ready = lambda: [type("Event", (), {"query": staticmethod(lambda: late[0])})()]
        other = p.keys("late", PAGES)
        p.fill([*latent, *drafts, *states], 5)
        linker.offload([p.kv(other, p.slots(2, PAGES)), p.state(other[-1], 3)])
        early = linker.num_completed_offloads()
        p.fill(latent, 2)
        p.fill(drafts, 300 + rank)
        p.fill(states, 400 + rank)
        wanted = snapshot(2, 3)
        late[0] = True
        wait_offloads(linker, 1)
        linker.pop_completed_offload()
        dist.barrier()
        p.fill([*latent, *drafts, *states], 998)
        agreed(linker.lookup("r2", [p.kv(other), p.state(other[-1])]), PAGES)
        linker.load("r2", [p.kv(other, p.slots(12, PAGES)), p.state(other[-1], 7)])
        landed = linker.finish_layer_wise_loading(linker.start_layer_wise_loading())
        same = all(torch.equal(a, b) for a, b in zip(snapshot(12, 7), wanted))
        said.append(("no row is read before its event", early == 0 and landed and same))
        dist.barrier()

        # A second state at a shorter length; then the longer one's is taken from rank 1 alone.
        middle = PAGES // 2
        p.fill(states, 500 + rank)
        del linker.record_offload_ready
        linker.offload([p.kv(other[:middle], p.slots(12, middle)), p.state(other[middle - 1], 4)])
        wait_offloads(linker, 1)
        linker.pop_completed_offload()
        dist.barrier()
        lengths = agreed(linker.lookup("r3", [p.kv(other), p.state(other[-1])]), PAGES)
        said.append(("both states are known", lengths == [middle, PAGES], lengths))
        dist.barrier()
        if rank == 0:
            group = linker.core.epochs.current().built.group
            group.remove_key("mamba", 1, bytes.fromhex(other[-1]))
        dist.barrier()
        lengths = agreed(linker.lookup("r4", [p.kv(other), p.state(other[-1])]), PAGES)
        said.append(("without one rank's state all ranks restore the shorter prefix", lengths == [middle], lengths))
        if rank == 0:
            built = linker.core.epochs.current().built
            pages = bytes.fromhex("".join(names))
            draft_pool = built.pools["draft"].name
            counts = {
                (pool, shard): sum(built.group.exists(name, shard, pages))
                for pool, name, shards in (("kv", "kv", 1), ("mamba", "mamba", ranks), ("draft", draft_pool, ranks)) for shard in range(shards)}
            expected = {("kv", 0): PAGES, **{("mamba", r): 1 for r in range(ranks)}, **{("draft", r): PAGES for r in range(ranks)}}
            said.append(("latent pages once, state and draft of each rank", counts == expected, counts))
        dist.barrier()
        linker.reset()
        linker.close()
    results.put((rank, said))
    results.close()
    results.join_thread()
    dist.destroy_process_group()


def main():
    context = multiprocessing.get_context("spawn")
    for ranks in (2, 4):
        with Store() as store:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            results = context.Queue()
            processes = [context.Process(target=rank_process, args=(r, ranks, port, store.address, results)) for r in range(ranks)]
            for process in processes:
                process.start()
            answers = dict(results.get(timeout=200) for _ in range(ranks))
            for process in processes:
                process.join(60)
            for rank, said in sorted(answers.items()):
                for sentence, holds, *values in said:
                    check(holds, f"{ranks} ranks, rank {rank}: {sentence}", *values)
    done()


if __name__ == "__main__":
    main()
