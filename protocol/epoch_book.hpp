// SPDX-License-Identifier: Apache-2.0
//
// Weight epochs: random values that the registrar gives out once for each (engine, name), so that all processes of an engine
// name the weights after its n-th update alike, and nobody else does. Without clock, thread or randomness of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "protocol/catalog.hpp"
#include "protocol/key.hpp"
#include "protocol/wire.hpp"

namespace kvonce::protocol {

inline constexpr std::size_t kMaxEpochNameBytes = 255;
inline constexpr std::size_t kMaxEpochsPerEngine = 1024;       // kept, the newest ones
inline constexpr std::size_t kMaxDroppedEpochs = 1U << 16U;    // of one engine, after which it gets no new ones

class EpochBook {
 public:
  /// An engine's values are forgotten `grace` after its last process has left.
  explicit EpochBook(Duration grace) : grace_(grace) {}

  void client_joined(ClientId client, EngineId engine, Time now);
  void client_left(ClientId client, Time now);
  /// The value of the name in `answer.epoch`: the one that it has, else what the asker knows of the store's last life, else
  /// `fresh`, which must be random and not zero. The 1,024 names of an engine that were asked for last have their values; the
  /// oldest goes for a new one. A name that went is too_many from then on, whoever asks: it never has another value. So is one
  /// that is told from an earlier life (`ask.known`) when 1,024 newer ones are there. Errors: bad_argument, too_many, closed (no
  /// such client).
  RegisterAnswer ask(ClientId client, const EpochAsk& ask, Digest128 fresh, Time now);
  /// Engines of which anything is known. Those whose grace is over count no more after the next event.
  std::size_t engines() const { return engines_.size(); }

 private:
  struct Engine {
    std::uint32_t clients = 0;
    Time gone_at = kNever;  // when the last one left
    std::unordered_map<std::string, Digest128> values;
    std::deque<std::string> order;              // of their names, oldest first
    std::unordered_set<std::uint64_t> dropped;  // digests of names that went
  };
  void forget(Time now);

  Duration grace_;
  std::unordered_map<ClientId, EngineId> clients_;
  std::unordered_map<EngineId, Engine> engines_;
};

/// Empty, or what is wrong with the name.
Error epoch_name_error(std::string_view name);

}  // namespace kvonce::protocol
