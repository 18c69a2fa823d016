// SPDX-License-Identifier: Apache-2.0
//
// The asker's part of a lookup: a search in the mapped index, so that a store is not sent pages that it has nothing of.
#pragma once

#include <cstdint>
#include <span>

#include "protocol/page_index.hpp"
#include "protocol/placement.hpp"

namespace kvonce::protocol {

struct LookupSearch {
  std::span<const IndexReader> readers;  // by partition; none, or one that is not valid: nothing can be searched
  const Placement* placement = nullptr;
  NamespaceId ns = 0;
  std::uint64_t every_page = 0;  // bit p: a resident page has all shards of pool p
};

/// Whether the index says that the page is there. One that is being changed at this moment counts as there.
bool is_resident(const LookupSearch& search, const PageHash& page);

/// How many leading pages the store has to be asked for: those that are there, and the one behind them, for which it gives the
/// reason. By bisection, about log2(pages) looks: a page does not leave before its continuation, so what is there is a prefix.
/// Where it is not (a hole, a page that comes or goes meanwhile) the store's own look decides: it answers for fewer pages, or
/// asks for all of them (LookupAnswer::search_again).
std::size_t pages_to_ask(const LookupSearch& search, std::span<const PageHash> pages);

}  // namespace kvonce::protocol
