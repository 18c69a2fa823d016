# SPDX-License-Identifier: Apache-2.0
# The program of docs/python.md.
import kvonce

LAYERS, ROWS, ROW_BYTES = 4, 64, 16 * 1024

# Memory as an engine has it: one array per layer, one row per page. Any array will do: torch, numpy, DLPack, memoryview.
memory = [[bytearray(ROWS * ROW_BYTES) for _ in range(LAYERS)] for _ in range(2)]
pages = [number.to_bytes(32, "little") for number in range(8)]  # chained page hashes of the engine

with kvonce.Runtime("my-engine", auto_bytes="256MiB") as runtime:
    space = runtime.namespace("my-model, revision 1, bf16, 64 tokens a page")
    group = space.group("main", [kvonce.GroupPool("latent", shards=(1, 1, 1))], ranks=(2, 1, 1))
    ranks, pools = [], []
    for tp in range(2):
        rank = group.rank(tp=tp)
        layers = [memoryview(layer).cast("B", (ROWS, ROW_BYTES)) for layer in memory[tp]]
        ranks.append(rank)
        pools.append(rank.register_pool("latent", [kvonce.Component("latent", layers)], shard=0))

    for tp in range(2):
        for layer in memory[tp]:
            layer[:] = b"x" * len(layer)
        result = ranks[tp].put(pages, {pools[tp]: range(8)}).result()
        print(f"rank {tp}: {result.succeeded} of {result.items} are stored")

    found = group.lookup(pages, request_id="request 1")
    print(f"{found.pages} pages can be restored")
    memory[1][0][:] = bytes(ROWS * ROW_BYTES)
    load = ranks[1].load(found.lease, pages, {pools[1]: range(16, 24)}, layers_per_group=1)
    load.wait_layers(1)  # layer 0 is in place: the forward pass may begin
    print("loaded" if load.result().ok else load.result().causes())
    runtime.release(found.lease)
