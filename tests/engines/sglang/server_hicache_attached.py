# SPDX-License-Identifier: Apache-2.0
# Time limit: 300 s
"""kvonce attached as HiCache's storage to SGLang's HTTP server while it runs, by the server's own routes, and detached."""
from _scenarios import PAGE, Hits, hicache
from _server import KEY, Server
from support import check, control, done
from support.compare import difference, prompt
from support.store import Store

ROUTE = "/hicache/storage-backend"


def main():
    tokens = prompt("attached over HTTP", 200)
    with Store() as store:
        arguments = hicache(store)
        wanted = {
            "hicache_storage_backend": arguments.pop("hicache_storage_backend"),
            "hicache_storage_backend_extra_config_json": arguments.pop("hicache_storage_backend_extra_config"),
            "hicache_storage_prefetch_policy": arguments.pop("hicache_storage_prefetch_policy"),
            "hicache_write_policy": arguments["hicache_write_policy"]}
        with Server(page_size=PAGE, admin_api_key=KEY, **arguments) as server:
            hits = Hits(store, "attached over HTTP")
            cold = server.generate(tokens)
            print(server.ask_until_idle(ROUTE, wanted, "PUT"), flush=True)
            check(not control.puts(), "nothing is stored before the first flush")
            server.flush()
            check(server.generate(tokens).tokens == cold.tokens, "attached: the answer is as before")
            local = server.generate(tokens)
            hits.begin()
            server.forget()
            restored = server.generate(tokens)
            check(restored.cached == local.cached > 0, "attached: as much is restored as the server's own cache had", restored.cached, local.cached)
            hits.end(restored.cached, ranks=1)
            check(difference(restored, local) == 0.0, "attached: log probabilities to the last bit", difference(restored, local))

            print(server.ask_until_idle(ROUTE, method="DELETE"), flush=True)
            server.forget("detached")
            check(server.generate(tokens).cached == 0, "detached: nothing is restored")
    done()


if __name__ == "__main__":
    main()
