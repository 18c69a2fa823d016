// SPDX-License-Identifier: Apache-2.0
#include "protocol/lookup_search.hpp"

#include <algorithm>

namespace kvonce::protocol {

namespace {
constexpr std::size_t kFewPages = 16;  // sent sooner than searched
}

bool is_resident(const LookupSearch& search, const PageHash& page) {
  PageView view;
  switch (search.readers[search.placement->owner(search.ns, page)].page(search.ns, page, &view)) {
    case ReadStatus::found: return (view.full_pools & search.every_page) == search.every_page;
    case ReadStatus::contended: return true;
    case ReadStatus::absent: break;
  }
  return search.every_page == 0;
}

std::size_t pages_to_ask(const LookupSearch& search, std::span<const PageHash> pages) {
  const bool searchable = search.placement != nullptr && search.readers.size() == search.placement->partitions() &&
                          std::all_of(search.readers.begin(), search.readers.end(), [](const IndexReader& r) { return r.valid(); });
  if (!searchable || pages.size() <= kFewPages || is_resident(search, pages.back())) return pages.size();
  const auto missing = std::partition_point(pages.begin(), pages.end() - 1, [&](const PageHash& page) { return is_resident(search, page); });
  return static_cast<std::size_t>(missing - pages.begin()) + 1;
}

}  // namespace kvonce::protocol
