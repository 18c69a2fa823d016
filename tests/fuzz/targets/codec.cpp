// SPDX-License-Identifier: Apache-2.0
//
// Every struct that travels. The first byte of an input says which; what can be read must be written again as it was.
#include "messages/codec.hpp"

#include <string_view>
#include <tuple>
#include <utility>

#include "messages/frames.hpp"
#include "target.hpp"

namespace {

using namespace kvonce;            // NOLINT
using namespace kvonce::protocol;  // NOLINT

// The corpus goes by these places: add at the end.
using Messages = std::tuple<PageReady, PutBatch, GrantResults, Withdraw, ChecksumAnswers, StoreReply, LookupAsk, LookupAnswer,
                            PartLookupAsk, PartLookupAnswer, PartNarrow, LeaseCall, LoadBegin, LoadBegun, LoadEnd, RemoveAsk,
                            RemoveAnswer, FlushAsk, FlushAnswer, AttachPool, AttachSender, NamespaceAsk, PoolAsk, GroupAsk,
                            CatalogUpdate, RegisterAnswer, ObjectEvent, messages::Nothing, messages::SenderName, messages::Wanted,
                            messages::LeaseOutcome, messages::StatsReply, messages::ClientsReply, messages::Events, EpochAsk, NamespaceClose,
                            messages::Report>;

template <class T>
void read_and_write(std::string_view bytes) {
  T x{};
  if (messages::decode(bytes, x)) KVONCE_FUZZ_CHECK(messages::encode(x) == bytes);
}

template <std::size_t... Is>
void read_one(std::size_t which, std::string_view bytes, std::index_sequence<Is...>) {
  ((which == Is ? read_and_write<std::tuple_element_t<Is, Messages>>(bytes) : void()), ...);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr std::size_t kCount = std::tuple_size_v<Messages>;
  read_one(data[0] % kCount, {reinterpret_cast<const char*>(data) + 1, size - 1}, std::make_index_sequence<kCount>{});
  return 0;
}
