// SPDX-License-Identifier: Apache-2.0
#include "tests/process/large.hpp"

namespace kvonce::process_test {

void fill_to_capacity(Rank& rank) {
  for (int chain = kFirstFill; chain < kFirstFill + kFills; ++chain) {
    const Answer put = rank.ask("put count=8 chain=" + std::to_string(chain));
    CHECK_MESSAGE(put["good"] == 8, put.text);
  }
  CHECK(rank.ask("stats")["evicted"] > 0);
}

Found look_at_everything(Rank& rank) {
  Found found;
  const auto look = [&](const std::string& what) {
    const Answer answer = rank.ask("lookup " + what);
    CHECK_MESSAGE(answer.error.empty(), answer.text);
    const auto pages = answer["pages"];
    found.resident += pages;
    if (pages == 0) return;
    const std::string lease = " lease=" + answer.fields.at("lease");
    const Answer loaded = rank.ask("load " + what + lease + " count=" + std::to_string(pages));
    CHECK_MESSAGE(loaded["wrong"] == 0, loaded.text);
    found.right += loaded["good"];
    rank.ask("release" + lease);
  };
  look("count=1 chain=1");
  for (int chain = kFirstFill; chain < kFirstFill + kFills; ++chain) look("count=8 chain=" + std::to_string(chain));
  return found;
}

StoppedWriter::StoppedWriter(const Folder& folder)
    : victim(folder, "engine=tp2", kLarge + " of=2 rank=0"), other(folder, "engine=tp2", kLarge + " of=2 rank=1") {
  victim.ask("begin_put count=1 chain=1" + kHeld);
  REQUIRE(victim.ask("held").error.empty());
  victim.stop();
  const Answer put = other.ask("put count=1 chain=1");
  CHECK_MESSAGE(put["stored"] == 1, put.text);
}

void StoppedWriter::wake() {
  victim.go_on();
  victim.ask("let_go");
}

}  // namespace kvonce::process_test
