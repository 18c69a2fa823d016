// SPDX-License-Identifier: Apache-2.0
//
// Many processes put the same pages, and others read them.
#include "tests/process/fleet.hpp"

#include <memory>

namespace kvonce::process_test {

namespace {

/// The store of a test: a kvonced, or an engine process that serves its peers.
std::vector<std::string> kinds() { return {"kvonced", "kvonced of four partitions", "engine process"}; }
struct Store {
  Store(const Folder& folder, const std::string& kind) {
    if (kind == "engine process") engine = std::make_unique<Rank>(folder, "serve=" + folder.store() + " engine=host");
    else
      daemon = std::make_unique<Daemon>(folder, kind == "kvonced"
                                                    ? std::vector<std::string>{"--grant-deadline", "10m"}
                                                    : std::vector<std::string>{"--grant-deadline", "10m", "--partitions", "4"});
  }
  std::unique_ptr<Daemon> daemon;
  std::unique_ptr<Rank> engine;
};

}  // namespace

TEST_CASE("eight processes put the same pages: each is moved once, all hear of it, and a ninth reads the right bytes") {
  for (const std::string& kind : kinds()) {
    CAPTURE(kind);
    const Folder folder;
    Store store(folder, kind);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int r = 0; r < 8; ++r) ranks.push_back(std::make_unique<Rank>(folder, "engine=tp8", "of=8 rank=" + std::to_string(r)));
    constexpr int kChains = 6;
    // All at once: nobody waits for an answer before the others have been asked.
    for (int chain = 1; chain <= kChains; ++chain) {
      const std::string put = "put count=32 chain=" + std::to_string(chain);
      for (const auto& rank : ranks) rank->tell(put);
    }
    std::uint64_t stored = 0;
    for (int chain = 1; chain <= kChains; ++chain) {
      for (const auto& rank : ranks) {
        const Answer answer = rank->hear();
        CHECK_MESSAGE(answer["good"] == 32, answer.text);
        stored += answer["stored"];
      }
    }
    CHECK(stored == 32 * kChains);
    std::uint64_t moved = 0;
    for (const auto& rank : ranks) moved += rank->ask("state")["moved"];
    CHECK(moved == 32ULL * kChains * 65'536);
    const Answer stats = ranks[3]->ask("stats");
    CHECK(stats["objects"] == 32 * kChains);
    CHECK(stats["stored_bytes"] == moved);
    CHECK(stats["claims"] == 0);
    CHECK(stats["quarantined"] == 0);

    Rank ninth(folder, "engine=another", "");
    for (int chain = 1; chain <= kChains; ++chain) CHECK(ninth.load_back("count=32 chain=" + std::to_string(chain)) == 32);
    CHECK(ninth.ask("exists count=40 chain=2")["pages"] == 32);
    if (store.engine) CHECK(store.engine->load_back("count=32 chain=5") == 32);

    Rank reader(folder, "engine=reader ro=1", "");
    CHECK(reader.load_back("count=32 chain=1") == 32);
    CHECK(reader.ask("put count=1 chain=90").error == "bad_argument");
    CHECK(reader.ask("admin what=clear").error == "bad_argument");
    CHECK(reader.ask("write_arena")["writable"] == 0);
    CHECK(ninth.ask("write_arena")["writable"] == 1);
  }
}

TEST_CASE("an engine process that serves puts and loads beside its peers") {
  const Folder folder;
  Rank server(folder, "serve=" + folder.store() + " engine=tp2 partitions=2", "of=2 rank=0");
  Rank peer(folder, "engine=tp2", "of=2 rank=1");
  for (int chain = 1; chain <= 8; ++chain) {
    const std::string put = "put count=32 chain=" + std::to_string(chain);
    server.tell(put);
    peer.tell(put);
    CHECK(server.hear()["good"] == 32);
    CHECK(peer.hear()["good"] == 32);
  }
  CHECK(server.ask("state")["moved"] + peer.ask("state")["moved"] == 8ULL * 32 * 65'536);
  for (int chain = 1; chain <= 8; ++chain) {
    CHECK(server.load_back("count=32 chain=" + std::to_string(chain)) == 32);
    CHECK(peer.load_back("count=32 chain=" + std::to_string(chain)) == 32);
  }
  // It ends: its peers go on with misses.
  CHECK(server.ask("stop").error.empty());
  CHECK(eventually([&] { return peer.ask("state")["connected"] == 0; }));
  CHECK(peer.ask("lookup count=32 chain=1").error == "store_lost");
}

TEST_CASE("a pool of another size is told to whoever brings it, and to nobody else") {
  const Folder folder;
  const Daemon daemon(folder);
  Rank first(folder, "engine=a", "bytes=65536");
  Rank second(folder, "engine=b", "none");
  const Answer refused = second.ask("setup bytes=32768");
  CHECK(!refused.error.empty());
  CHECK_MESSAGE(refused.text.find("latent") != std::string::npos, refused.text);
  const Answer layers = second.ask("setup bytes=32768 layers=2");
  CHECK(!layers.error.empty());
  CHECK(first.ask("put count=8 chain=1")["stored"] == 8);
  CHECK(first.load_back("count=8 chain=1") == 8);
  CHECK(second.ask("setup bytes=65536").error.empty());
  CHECK(second.load_back("count=8 chain=1") == 8);
}

TEST_CASE("ranks of one engine whose bytes differ are kept apart from then on, in every process") {
  for (const std::string partitions : {"1", "4"}) {
    CAPTURE(partitions);
    const Folder folder;
    const Daemon daemon(folder, {"--verify-sample", "1", "--conflict-limit", "1", "--partitions", partitions});
    Rank zero(folder, "engine=tp2", "of=2 rank=0");
    Rank one(folder, "engine=tp2", "of=2 rank=1");
    CHECK(zero.ask("put count=16 chain=1 salt=10")["good"] == 16);
    CHECK(one.ask("put count=16 chain=1 salt=11")["good"] == 16);
    CHECK(eventually([&] { return zero.ask("stats")["demotions"] == 1; }));
    CHECK(zero.ask("put count=16 chain=1 salt=10")["good"] == 16);
    CHECK(zero.load_back("count=16 chain=1 salt=10") == 16);
    CHECK(one.load_back("count=16 chain=1 salt=11") == 16);
  }
}

}  // namespace kvonce::process_test
