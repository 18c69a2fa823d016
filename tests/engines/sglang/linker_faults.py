# SPDX-License-Identifier: Apache-2.0
# Time limit: 600 s
"""The external linker in trouble, on two ranks with latent attention: the engine lives, and what it answers next is right."""
from _faulty_linker import trouble
from _scenarios import PAGE, linker
from support import check, control, done
from support import sglang_engine as se
from support.compare import difference, prompt
from support.store import Store


class Trial:
    """One engine; each trouble has a prompt of its own."""

    def __init__(self, engine):
        self.engine = engine

    def stored(self, name):
        """-> tokens, the answer that is right"""
        tokens = prompt(f"fault {name}", 200)
        se.generate(self.engine, tokens)
        right = se.generate(self.engine, tokens)
        se.flush(self.engine)
        se.pollute(self.engine, seed=f"fault {name}")
        return tokens, right

    def answer(self, tokens):
        """An answer, or None where the engine says 503 for a load that it had accepted."""
        try:
            return se.generate(self.engine, tokens)
        except Exception as error:
            check("External KV cache load failed" in str(error), "the only refusal is that of a load that was accepted", str(error)[:200])
            return None

    def right_again(self, name, tokens, right):
        """The next answer, whether restored or computed."""
        again = se.generate(self.engine, tokens)
        check(again.tokens == right.tokens, f"{name}: the next answer is right", again.cached)
        return again


def main():
    with Store() as store:
        trial = Trial(se.engine("mla", tp=2, page_size=PAGE, **linker(store, linker="FaultyLinker", module="_faulty_linker", load_ms=10_000)))

        # One rank cannot reach the store, at each point where the linker asks it.
        for what, rank in (("lookup", 1), ("lookup", 0), ("put", 1), ("load", 1)):
            name = f"{what} of rank {rank}"
            if what == "put":
                trouble(what, rank=rank)
                tokens, right = trial.stored(name)
                trouble(what, False, rank=rank)
                check(trial.right_again(name, tokens, right).tokens == right.tokens, f"{name}: stored by the other rank or not at all")
                continue
            tokens, right = trial.stored(name)
            trouble(what, rank=rank)
            got = trial.answer(tokens)
            trouble(what, False, rank=rank)
            if what == "lookup":
                check(got is not None and got.cached == 0, f"{name}: no rank restores anything", got and got.cached)
            else:
                check(got is None, f"{name}: the batch is refused once")
            check(got is None or got.tokens == right.tokens, f"{name}: tokens are right")
            trial.right_again(name, tokens, right)

        # All ranks' loads fail.
        tokens, right = trial.stored("loads")
        control.store_lost(True)
        check(trial.answer(tokens) is None, "a load that fails after it was accepted is refused once")
        control.store_lost(False)
        trial.right_again("loads", tokens, right)

        # The store does not answer.
        tokens, right = trial.stored("paused")
        store.pause()
        got = trial.answer(tokens)
        store.resume()
        check(got is not None and got.tokens == right.tokens, "a store that does not answer: computed", got and got.cached)

        # Killed between store and restore.
        tokens, right = trial.stored("killed before")
        store.kill()
        got = trial.answer(tokens)
        check(got is not None and got.cached == 0 and got.tokens == right.tokens, "a store that was killed: computed", got and got.cached)
        store.start()
        stored_again(trial, store)

        # Killed in the middle of a restore.
        tokens, right = trial.stored("killed within")
        trouble("kill", text=str(store.pid))
        got = trial.answer(tokens)
        trouble("kill", False)
        store.kill()
        check(got is None or got.tokens == right.tokens, "a store killed in a restore: the right answer, or none", got and got.cached)
        trial.right_again("killed within", tokens, right)
        store.start()
        stored_again(trial, store)
        trial.engine.shutdown()
    done()


def stored_again(trial, store):
    """The engine finds the new store by itself: what is put from now on is restored. Each attempt has a prompt of its own."""
    for attempt in range(20):
        tokens, right = trial.stored(f"again {store.pid} {attempt}")
        restored = trial.answer(tokens)
        if restored is not None and restored.cached == right.cached:
            check(difference(restored, right) == 0.0, "the next store is used without a restart of the engine", restored.cached)
            return
    check(False, "the engine uses the next store")


if __name__ == "__main__":
    main()
