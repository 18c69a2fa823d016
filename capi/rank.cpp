// SPDX-License-Identifier: Apache-2.0
//
// Groups, ranks, pools, puts and loads.
#include "capi/handles.hpp"

#include "runtime/operation_impl.hpp"

using namespace kvonce;        // NOLINT: the C API speaks all of its words
using namespace kvonce::capi;  // NOLINT

namespace {

// A group has at most 64 pools, an object at most 65,536 ranges: nobody needs longer lists.
constexpr std::size_t kMaxPools = 64;
constexpr std::size_t kMaxRanges = 65'536;

std::string number(std::size_t value) { return std::to_string(value); }

Error to_group(const kvonce_group_options& from, GroupSpec* to) {
  if (from.name == nullptr) return null("group's name");
  to->name = from.name;
  to->ranks = to_shards(from.ranks);
  if (from.pool_count > kMaxPools)
    return bad("group '" + to->name + "' has " + number(from.pool_count) + " pools: must be 1 to 64");
  if (from.pools == nullptr && from.pool_count != 0) return null("list of the group's pools");
  for (std::size_t i = 0; i < from.pool_count; ++i) {
    const kvonce_group_pool& pool = from.pools[i];
    if (pool.name == nullptr) return bad("group '" + to->name + "': the name of pool " + number(i) + " is NULL");
    GroupPool& made = to->pools.emplace_back();
    made.name = pool.name;
    if (pool.shards != nullptr) made.shards = to_shards(*pool.shards);
    if (pool.trailing_pages > 65'535)
      return bad("pool '" + made.name + "': trailing_pages is " + number(pool.trailing_pages) + ": must be at most 65,535");
    made.policy.trailing_pages = static_cast<std::uint16_t>(pool.trailing_pages);
    if (Error wrong = check_flag("pool '" + made.name + "': optional", pool.optional)) return wrong;
    made.optional = pool.optional != 0;
  }
  return {};
}

Error to_pool(const kvonce_pool_options& from, PoolSpec* to) {
  if (from.name == nullptr) return null("pool's name");
  to->name = from.name;
  if (from.shard != nullptr) to->shard = to_coordinates(*from.shard);
  to->rows = from.rows;
  if (from.memory > KVONCE_MEMORY_HIP)
    return bad("pool '" + to->name + "': memory is " + number(from.memory) + ": must be 0 or 1");
  to->memory = static_cast<MemoryKind>(from.memory);
  to->device = from.device;
  if (from.component_count > kMaxRanges)
    return bad("pool '" + to->name + "' has " + number(from.component_count) + " components: must be at most " +
               number(kMaxRanges));
  if (from.components == nullptr && from.component_count != 0) return bad("pool '" + to->name + "': the components are NULL");
  for (std::size_t c = 0; c < from.component_count; ++c) {
    const kvonce_component& component = from.components[c];
    const auto wrong = [&](const std::string& text) {
      return bad("pool '" + to->name + "', component " + number(c) + ": " + text);
    };
    if (component.name == nullptr) return wrong("its name is NULL");
    if (component.layer_count > kMaxRanges)
      return wrong("it has " + number(component.layer_count) + " layers: must be at most " + number(kMaxRanges));
    if (component.layers == nullptr && component.layer_count != 0) return wrong("its layers are NULL");
    Component& made = to->components.emplace_back();
    made.name = component.name;
    for (std::size_t l = 0; l < component.layer_count; ++l)
      made.layers.push_back({component.layers[l].base, component.layers[l].row_stride, component.layers[l].row_bytes});
  }
  return {};
}

Error to_event(const kvonce_event* from, Event* to) {
  if (from == nullptr) return {};
  if (Error wrong = check(from, "event")) return wrong;
  *to = from->event;
  return {};
}

Error check_batch(const char* call, const kvonce_page* pages, std::size_t page_count, const kvonce_item* items,
                  std::size_t item_count) {
  if (Error wrong = check_list(call, "items", items, item_count, 1)) return wrong;
  return check_list(call, "pages", pages, page_count, 1);
}

}  // namespace

extern "C" {

kvonce_reason kvonce_group_register(kvonce_runtime* runtime, uint32_t ns, const kvonce_group_options* options, uint32_t* group,
                                    kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    if (options == nullptr) return null("group's options");
    if (group == nullptr) return null("group's place");
    kvonce_group_options read{};
    if (Error wrong = read_options(options, "group options", &read, offsetof(kvonce_group_options, timeout_ms))) return wrong;
    if (Error wrong = check_reserved("group options", read.reserved)) return wrong;
    GroupSpec spec;
    if (Error wrong = to_group(read, &spec)) return wrong;
    const auto made = runtime->runtime->register_group({ns}, spec, to_ms_or(read.timeout_ms, kControlTimeout));
    if (made) *group = made.value.id;
    return made.error;
  });
}

kvonce_reason kvonce_rank_add(kvonce_runtime* runtime, uint32_t group, const kvonce_coordinates* at, kvonce_rank** rank,
                              kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    if (at == nullptr) return null("rank's coordinates");
    if (rank == nullptr) return null("rank's place");
    auto handle = std::make_unique<kvonce_rank>();
    auto made = runtime->runtime->add_rank({group}, to_coordinates(*at));
    if (!made) return std::move(made.error);
    handle->rank = std::move(made.value);
    *rank = handle.release();
    return {};
  });
}

kvonce_reason kvonce_rank_close(kvonce_rank* rank, uint64_t timeout_ms, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(rank, "rank")) return wrong;
    return rank->rank->close(to_ms(timeout_ms));
  });
}

void kvonce_rank_free(kvonce_rank* rank) {
  guarded(nullptr, [&]() -> Error {
    free_handle(rank);
    return {};
  });
}

uint64_t kvonce_rank_moved_bytes(const kvonce_rank* rank) { return usable(rank) ? rank->rank->moved_bytes() : 0; }

kvonce_reason kvonce_pool_register(kvonce_rank* rank, const kvonce_pool_options* options, uint32_t* pool, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(rank, "rank")) return wrong;
    if (options == nullptr) return null("pool's options");
    if (pool == nullptr) return null("pool's place");
    kvonce_pool_options read{};
    if (Error wrong = read_options(options, "pool options", &read, offsetof(kvonce_pool_options, timeout_ms))) return wrong;
    PoolSpec spec;
    if (Error wrong = to_pool(read, &spec)) return wrong;
    const auto made = rank->rank->register_pool(spec, to_ms_or(read.timeout_ms, kControlTimeout));
    if (made) *pool = made.value.id;
    return made.error;
  });
}

kvonce_reason kvonce_pool_unregister(kvonce_rank* rank, uint32_t pool, uint64_t timeout_ms, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(rank, "rank")) return wrong;
    return rank->rank->unregister_pool({pool}, to_ms(timeout_ms));
  });
}

kvonce_reason kvonce_put(kvonce_rank* rank, const kvonce_page* pages, size_t page_count, const kvonce_item* items,
                         size_t item_count, const kvonce_put_options* options, kvonce_operation** operation,
                         kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(rank, "rank")) return wrong;
    if (operation == nullptr) return null("operation's place");
    if (Error wrong = check_batch("put", pages, page_count, items, item_count)) return wrong;
    kvonce_put_options read{};
    if (Error wrong = read_options(options, "put options", &read)) return wrong;
    if (read.level > KVONCE_LEVEL_REPLICATED) return bad("put: level is " + number(read.level) + ": must be 0, 1 or 2");
    PutOptions with;
    if (Error wrong = to_event(read.after, &with.after)) return wrong;
    if (Error wrong = to_completion(&read.completion, &with.completion)) return wrong;
    with.level = static_cast<AckLevel>(read.level);
    with.timeout = to_ms_or(read.timeout_ms, kDefaultTimeout);
    PutBatch batch;
    batch.pages = to_pages(pages, page_count);
    if (read.parent != nullptr) batch.parent = to_page(*read.parent);
    batch.first_depth = read.first_depth;
    batch.items.reserve(item_count);
    for (std::size_t i = 0; i < item_count; ++i) batch.items.push_back({items[i].page, {items[i].pool}, items[i].row});
    auto handle = std::make_unique<kvonce_operation>();
    return give(rank->rank->put(std::move(batch), std::move(with)), operation, std::move(handle));
  });
}

kvonce_reason kvonce_load(kvonce_rank* rank, const kvonce_lease* lease, const kvonce_page* pages, size_t page_count,
                          const kvonce_item* items, size_t item_count, const kvonce_load_options* options,
                          kvonce_operation** operation, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(rank, "rank")) return wrong;
    if (lease == nullptr) return null("lease");
    if (operation == nullptr) return null("operation's place");
    if (Error wrong = check_batch("load", pages, page_count, items, item_count)) return wrong;
    kvonce_load_options read{};
    if (Error wrong = read_options(options, "load options", &read)) return wrong;
    if (Error wrong = check_reserved("load options", read.reserved)) return wrong;
    LoadOptions with;
    if (Error wrong = to_event(read.after, &with.after)) return wrong;
    if (Error wrong = to_completion(&read.completion, &with.completion)) return wrong;
    with.timeout = to_ms_or(read.timeout_ms, kDefaultTimeout);
    with.layer_begin = read.layer_begin;
    with.layer_end = read.layer_end == 0 ? KVONCE_EVERY_LAYER : read.layer_end;
    with.layers_per_group = read.layers_per_group;
    if (read.progress != nullptr)
      with.progress = [call = read.progress, argument = read.progress_argument](std::uint32_t layers) { call(layers, argument); };
    std::vector<LoadItem> wanted;
    wanted.reserve(item_count);
    for (std::size_t i = 0; i < item_count; ++i) {
      if (items[i].page >= page_count)
        return bad("load: item " + number(i) + " names page " + number(items[i].page) + " of a batch of " + number(page_count));
      wanted.push_back({to_page(pages[items[i].page]), {items[i].pool}, items[i].row});
    }
    auto handle = std::make_unique<kvonce_operation>();
    return give(rank->rank->load(to_lease(*lease), std::move(wanted), std::move(with)), operation, std::move(handle));
  });
}

kvonce_reason kvonce_rank_exists(const kvonce_rank* rank, uint32_t pool, const kvonce_page* pages, size_t page_count,
                                 uint8_t* found, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(rank, "rank")) return wrong;
    if (Error wrong = check_list("exists", "pages", pages, page_count, 0)) return wrong;
    if (found == nullptr && page_count != 0) return null("answer's place");
    const auto answer = rank->rank->exists({pool}, to_pages(pages, page_count));
    if (answer) std::copy(answer.value.begin(), answer.value.end(), found);
    return answer.error;
  });
}

}  // extern "C"
