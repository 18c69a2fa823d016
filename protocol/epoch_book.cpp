// SPDX-License-Identifier: Apache-2.0
#include "protocol/epoch_book.hpp"

#include <xxhash.h>

namespace kvonce::protocol {

Error epoch_name_error(std::string_view name) {
  if (!name.empty() && name.size() <= kMaxEpochNameBytes) return {};
  return {Reason::bad_argument, "the name of an epoch has " + std::to_string(name.size()) + " bytes; 1 to " +
                                    std::to_string(kMaxEpochNameBytes) + " are allowed"};
}

void EpochBook::forget(Time now) {
  std::erase_if(engines_, [&](const auto& entry) {
    const Engine& engine = entry.second;
    return engine.clients == 0 && now >= engine.gone_at && now - engine.gone_at >= grace_;
  });
}

void EpochBook::client_joined(ClientId client, EngineId engine, Time now) {
  forget(now);  // first: an engine that comes too late is a new one
  if (!clients_.emplace(client, engine).second) return;
  Engine& joined = engines_[engine];
  ++joined.clients;
  joined.gone_at = kNever;
}

void EpochBook::client_left(ClientId client, Time now) {
  if (const auto node = clients_.extract(client)) {
    Engine& left = engines_.at(node.mapped());
    if (--left.clients == 0) left.gone_at = now;
  }
  forget(now);
}

RegisterAnswer EpochBook::ask(ClientId client, const EpochAsk& ask, Digest128 fresh, Time now) {
  forget(now);
  RegisterAnswer answer;
  if ((answer.error = epoch_name_error(ask.name))) return answer;
  const auto at = clients_.find(client);
  if (at == clients_.end()) {
    answer.error = {Reason::closed, "an epoch is asked for by a process that is not connected"};
    return answer;
  }
  Engine& engine = engines_.at(at->second);
  if (const auto value = engine.values.find(ask.name); value != engine.values.end()) {
    answer.epoch = value->second;
    return answer;
  }
  const auto digest = [](const std::string& name) { return std::uint64_t{XXH3_64bits(name.data(), name.size())}; };
  const bool told = ask.known != Digest128{};
  const bool full = engine.values.size() == kMaxEpochsPerEngine;
  const bool dropped = engine.dropped.contains(digest(ask.name));
  if (dropped || (full && (told || engine.dropped.size() >= kMaxDroppedEpochs))) {
    answer.error = {Reason::too_many, "epoch '" + ask.name + "' " + (dropped ? "was dropped for newer ones" : "is one too many for its engine") +
                                          "; the newest " + std::to_string(kMaxEpochsPerEngine) + " are kept"};
    return answer;
  }
  if (full) {
    engine.dropped.insert(digest(engine.order.front()));
    engine.values.erase(engine.order.front());
    engine.order.pop_front();
  }
  answer.epoch = told ? ask.known : fresh;
  engine.values.emplace(ask.name, answer.epoch);
  engine.order.push_back(ask.name);
  return answer;
}

}  // namespace kvonce::protocol
