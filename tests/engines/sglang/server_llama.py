# SPDX-License-Identifier: Apache-2.0
# Time limit: 300 s
"""SGLang's HTTP server, by switches alone: a prompt that it computed and then forgot comes back from the store."""
from _scenarios import PAGE, Hits, linker, spread
from _server import Server
from support import check, control, done
from support.compare import difference, prompt
from support.store import Store


def main():
    tokens = prompt("over HTTP", 200)
    with Store() as store, Server(page_size=PAGE, **linker(store)) as server:
        hits = Hits(store, "over HTTP")
        cold = server.generate(tokens)
        check(cold.cached == 0, "the first request is computed", cold)
        local = server.generate(tokens)
        server.forget()
        hits.begin()
        restored = server.generate(tokens)
        check(restored.cached == local.cached > 0, "as much is restored as the server's own cache had", restored.cached, local.cached)
        check(restored.details.get("host") == restored.cached, "the answer says where it came from", restored.details)
        hits.end(restored.cached, ranks=1)
        check(restored.tokens == cold.tokens, "with the tokens that were computed", restored.tokens)
        check(difference(restored, local) == 0.0, "and the log probabilities of a local prefix hit, to the last bit", difference(restored, local))
        server.forget("control")
        control.moves_nothing(True)
        wrong = server.generate(tokens)
        check(wrong.cached == local.cached and spread(wrong, local) > 0.1, "a restore that goes wrong is seen", wrong.cached, spread(wrong, local))
    done()


if __name__ == "__main__":
    main()
