// SPDX-License-Identifier: Apache-2.0
#include "runtime/connection.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include <kvonce/version.hpp>

#include "runtime/auto_store.hpp"
#include "runtime/link_pump.hpp"
#include "runtime/store_info.hpp"
#include "runtime/store_memory.hpp"
#include "runtime/store_settings.hpp"
#include "telemetry/log.hpp"

namespace kvonce::runtime {

namespace {

// Where nothing more is asked of a store that does not take it, at 32 MiB, all that may be open comes to 64 MiB more.
constexpr std::uint64_t kBacklogBytes = std::uint64_t{192} << 20U;
constexpr std::chrono::milliseconds kFirstDelay{10};
constexpr std::chrono::milliseconds kLastDelay{1'000};
// What one attempt to connect again may take.
constexpr std::chrono::milliseconds kAttempt{2'000};

bool is_transient(const transport::Connected& connected) {
  if (!connected.refuse) return connected.error.reason == Reason::deadline;
  switch (connected.refuse->reason) {
    case transport::RefuseReason::not_ready:
    case transport::RefuseReason::duplicate:
    case transport::RefuseReason::draining:
      return true;
    default:
      return false;
  }
}

}  // namespace

StoreConnection::StoreConnection(Core& core) : core_(core) {}

StoreConnection::~StoreConnection() {
  stop_trying();
  close();
}

Error StoreConnection::start(SteadyPoint deadline) {
  auto delay = kFirstDelay;
  while (true) {
    const Attempt attempt = connect(deadline);
    if (!attempt.error) break;
    if (!attempt.transient || std::chrono::steady_clock::now() + delay >= deadline) return attempt.error;
    sleep_for(delay);
    delay = std::min(delay * 2, kLastDelay);
  }
  keeper_ = std::thread([this] { run(); });
  pthread_setname_np(keeper_.native_handle(), "kvonce-connect");
  if (core_.wait_connected(deadline)) return {};
  return {Reason::deadline, "the store at " + core_.config.store + " took the connection, but did not answer in time"};
}

StoreConnection::Attempt StoreConnection::connect(SteadyPoint deadline) {
  std::string where = core_.config.store;
  const bool any = where == "auto";
  if (any) {
    Result<std::string> found = find_or_start_store(core_.config, deadline);
    if (!found) return {found.error, found.error.reason == Reason::busy};
    where = *found;
  }
  transport::Hello hello;
  hello.release = version();
  hello.client = core_.client;
  hello.engine = core_.engine;
  hello.engine_id = core_.config.engine_id;
  hello.nonce = random_bits();
  hello.last_incarnation = last_incarnation_;
  hello.read_only = core_.config.read_only;
  transport::Connected connected = transport::connect_link(where.substr(5), hello, deadline, kBacklogBytes);
  // "auto" found one that answered a moment ago: it may be ending, and then the next attempt finds or starts another.
  if (!connected.link) return {connected.error, is_transient(connected) || (any && connected.error.reason != Reason::bad_argument && !connected.refuse)};
  return welcome(std::move(connected));
}

StoreConnection::Attempt StoreConnection::welcome(transport::Connected&& connected) {
  const transport::Welcome& welcome = connected.link->welcome();
  const auto wrong = [&](const std::string& text) -> Attempt {
    connected.link->close();
    if (connected.arena_fd >= 0) ::close(connected.arena_fd);
    return {{Reason::store_lost, "the store at " + core_.config.store + " " + text}, false};
  };
  StoreInfo info;
  if (!messages::decode(welcome.info, info) || info.partitions.empty() || info.partitions.size() > 64)
    return wrong("sent a layout that cannot be read");
  if (connected.arena_fd < 0) return wrong("handed out no memory");
  if (core_.config.store == "auto") tell_of_settings(settings_not_met(core_.config, info));
  storage::MapOptions options;
  options.read_only = core_.config.read_only;
  options.sealed = info.sealed;
  options.huge_pages = huge_pages_of(core_.config.huge_pages);
  for (const auto& part : info.partitions) {
    if (part.index_offset > info.arena_bytes || part.index_bytes > info.arena_bytes - part.index_offset ||
        part.slots_offset > info.arena_bytes || part.slots_bytes > info.arena_bytes - part.slots_offset)
      return wrong("sent a layout that does not fit its memory");
    options.protect.push_back({part.index_offset, part.index_bytes});
  }
  storage::ArenaResult mapped = storage::Arena::map(connected.arena_fd, info.arena_bytes, options);
  if (!mapped.arena) return wrong("has memory that cannot be mapped: " + mapped.error);
  ::close(connected.arena_fd);
  connected.arena_fd = -1;
  const auto memory = std::make_shared<storage::Arena>(std::move(*mapped.arena));
  if (core_.config.populate) {
    if (const auto why = memory->populate(0, memory->bytes())) return wrong("has memory that cannot be mapped: " + *why);
  }
  auto view = std::make_shared<actors::ArenaView>();
  view->base = memory->base();
  view->bytes = memory->bytes();
  view->checksums = info.checksums;
  view->placement = protocol::Placement::local(static_cast<std::uint32_t>(info.partitions.size()));
  view->slots_bytes = info.partitions.front().slots_bytes;
  for (const auto& part : info.partitions) {
    view->readers.emplace_back(memory->base() + part.index_offset, part.index_bytes);
    if (!view->readers.back().valid()) return wrong("has an index of another format");
  }
  view->mapping = memory;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      connected.link->close();
      return {{Reason::closed, "the runtime is stopped"}, false};
    }
    link_ = connected.link;
    arena_ = view;
    last_incarnation_ = welcome.incarnation;
    store_start_ = {info.warm, info.why_cold, info.restored_objects};
    lost_ = false;
    ending_ = false;
  }
  // The proxies first: the reader tells them when the link ends.
  core_.host->stores_found(connected.link, static_cast<std::uint32_t>(info.partitions.size()), view);
  if (core_.events_wanted.load(std::memory_order_acquire)) core_.host->want_events(true);
  std::unique_ptr<transport::LinkReader> reader;
  try {
    reader = std::make_unique<transport::LinkReader>(
        connected.link, [host = core_.host.get()](std::string_view frame) { return host->take_frame(frame); },
        [host = core_.host.get()] { host->turn_over(); }, [this](transport::LinkEnd end) { on_ended(end); });
  } catch (const std::system_error& problem) {
    connected.link->close();
    on_ended(transport::LinkEnd::closed_here);
    return {{Reason::no_space, std::string("no thread or descriptor for the connection: ") + problem.what()}, true};
  }
  {
    const std::lock_guard lock(mutex_);
    reader_ = std::move(reader);
  }
  if (core_.config.caller_runs) core_.set_pump(std::make_shared<LinkPump>(connected.link, *core_.host));
  return {};
}

void StoreConnection::tell_of_settings(std::string not_met) {
  if (not_met == told_not_met_) return;
  told_not_met_ = std::move(not_met);
  if (!told_not_met_.empty())
    telemetry::warn("the store that runs already on this host has settings of its own, which hold for all its engines: " +
                    told_not_met_ + "; to have other ones, end its engines, then kvonce stop");
}

StoreStart StoreConnection::store_start() const {
  const std::lock_guard lock(mutex_);
  return store_start_;
}

void StoreConnection::on_ready() {
  std::shared_ptr<const actors::ArenaView> arena;
  std::uint64_t life = 0;
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return;
    arena = arena_;
    life = last_incarnation_;
  }
  core_.set_view(std::move(arena), life);
}

void StoreConnection::on_ranks_told() {
  {
    const std::lock_guard lock(mutex_);
    ranks_told_ = true;
  }
  changed_.notify_all();
}

void StoreConnection::on_ending() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
}

void StoreConnection::on_ended(transport::LinkEnd end) {
  bool told = false;
  {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    ranks_told_ = false;
    arena_.reset();
    told = ending_;
  }
  core_.set_view(nullptr, 0);
  core_.host->stores_lost();
  if (end != transport::LinkEnd::closed_here)
    telemetry::warn("the store at " + core_.config.store + (told ? " has ended" : " is lost (" + std::string(to_string(end)) + ")") +
                    "; pages are misses until it is back");
  changed_.notify_all();
}

bool StoreConnection::sleep_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stopping_; });
}

void StoreConnection::run() {
  while (true) {
    std::unique_ptr<transport::LinkReader> over;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || lost_; });
      if (stopping_) return;
      over = std::move(reader_);
      link_.reset();
    }
    over.reset();  // joins the thread that told us
    // Whoever lets us in believes that we write to no slot of its earlier lives: a grant that is still on its way to its rank
    // counts too.
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || ranks_told_; });
      if (stopping_) return;
    }
    while (core_.counters->row_reads.load(std::memory_order_acquire) != 0)
      if (!sleep_for(std::chrono::milliseconds{1})) return;
    auto delay = kFirstDelay;
    Attempt attempt = connect(std::chrono::steady_clock::now() + kAttempt);
    while (attempt.error) {
      if (!sleep_for(delay)) return;
      delay = std::min(delay * 2, kLastDelay);
      attempt = connect(std::chrono::steady_clock::now() + kAttempt);
    }
    telemetry::warn("the store at " + core_.config.store + " is back");
  }
}

void StoreConnection::stop_trying() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (keeper_.joinable()) keeper_.join();
}

void StoreConnection::close() {
  std::unique_ptr<transport::LinkReader> reader;
  std::shared_ptr<transport::Link> link;
  {
    const std::lock_guard lock(mutex_);
    reader = std::move(reader_);
    link = std::move(link_);
  }
  if (reader) reader->stop();
  if (link) link->close();
}

}  // namespace kvonce::runtime
