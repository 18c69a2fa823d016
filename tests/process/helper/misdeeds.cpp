// SPDX-License-Identifier: Apache-2.0
//
// What a process should not do: flood, write where it may only read, fork and go on, and speak nonsense to a store.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>

#include "messages/frames.hpp"
#include "runtime/core.hpp"
#include "tests/process/helper/program.hpp"
#include "transport/link_client.hpp"

namespace kvonce::process_test {

// Threads that never wait for an answer; they live as long as the process, or until `most` lookups are asked.
std::string Program::flood(const Line& line) {
  static std::atomic<std::uint64_t> puts{0};
  static std::atomic<std::uint64_t> lookups{0};
  if (line.has("count")) return "puts=" + std::to_string(puts) + " lookups=" + std::to_string(lookups);
  const std::uint64_t chains = line.number("chains", 64);
  const std::uint64_t base = line.number("base", 1'000'000);
  if (!line.has("lookups")) std::thread([this, base] {
    for (std::uint64_t chain = base;; ++chain) {
      PutBatch batch;
      for (std::uint32_t i = 0; i < 32; ++i) {
        batch.pages.push_back(page_of(chain, i));
        batch.items.push_back({i, pool_, i % rows_->rows()});
      }
      PutOptions options;
      options.timeout = std::chrono::hours(1);
      if (const auto put = rank_->put(std::move(batch), std::move(options)); put && !put.value->done()) ++puts;
    }
  }).detach();
  std::thread([this, chains, first = line.number("chain"), probe = line.has("probe"), most = line.number("most", ~std::uint64_t{0})] {
    for (std::uint64_t n = 0; n < most; ++n) {
      std::vector<PageHash> pages;
      for (std::uint32_t i = 0; i < 32; ++i) pages.push_back(page_of(first + n % chains, i));
      LookupOptions options;
      options.lease_time = std::chrono::hours(1);
      options.timeout = std::chrono::hours(1);
      options.probe = probe;
      // One that is done already was refused: so many are open.
      if (const auto lookup = runtime_->lookup(group_, std::move(pages), std::move(options)); lookup && !lookup.value->done()) ++lookups;
    }
  }).detach();
  return "ok=1";
}

// The connection ends while the process lives on.
std::string Program::hang_up() {
  int ended = 0;
  for (int fd = 3; fd < 1'024; ++fd) {
    int domain = 0;
    socklen_t size = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX && shutdown(fd, SHUT_RDWR) == 0) ++ended;
  }
  return "ended=" + std::to_string(ended);
}

std::string Program::write_arena() {
  const auto view = runtime_->impl().core->view();
  if (!view) return "error=store_lost no arena";
  const bool writable = mprotect(view->base, 4096, PROT_READ | PROT_WRITE) == 0;
  return "writable=" + std::to_string(writable ? 1 : 0);
}

// A child that keeps what it got until nobody reads this program's output any more.
std::string Program::fork_sleeper() {
  if (fork() != 0) return "ok=1";
  pollfd gone{STDOUT_FILENO, 0, 0};
  while (poll(&gone, 1, -1) < 0) {}
  _exit(0);
}

std::string Program::fork_child() {
  const pid_t child = fork();
  if (child == 0) {
    bool said = true;
    const auto forked = [&](const Error& error) { said = said && error.text.find("fork") != std::string::npos; };
    forked(rank_->put({{page_of(1, 0)}, {}, 0, {{0, pool_, 0}}}).error);
    forked(rank_->load({1, 1}, {{page_of(1, 0), pool_, 0}}).error);
    forked(runtime_->lookup(group_, {page_of(1, 0)}).error);
    forked(runtime_->exists(group_, "latent", 0, std::vector<PageHash>{page_of(1, 0)}).error);
    forked(runtime_->clients().error);
    forked(runtime_->open_namespace("more").error);
    forked(runtime_->add_rank(group_, Coordinates{}).error);
    rank_.reset();
    runtime_.reset();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    _exit(said ? 0 : 1);  // what a sanitizer does at the end needs the threads that only the parent has
#else
    std::exit(said ? 0 : 1);  // as a child that knows nothing of kvonce ends: with its destructors
#endif
  }
  int status = 0;
  waitpid(child, &status, 0);
  return "status=" + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : 1'000 + WTERMSIG(status));
}

std::string kept_by_exec() {
  std::string names;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (fd <= STDERR_FILENO || fd == dirfd(folder) || (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0) continue;
    char target[256] = {};
    static_cast<void>(!readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1));
    names += std::to_string(fd) + ":" + target + ",";
  }
  closedir(folder);
  return names;
}

// -- nonsense ----------------------------------------------------------------------------------------------------------

namespace {

using messages::FrameKind;

class Wild {
 public:
  Wild(std::string socket, std::uint64_t seed) : socket_(std::move(socket)), random_(seed) {}

  /// One connection and what is said on it; false: not let in.
  bool round() {
    transport::Hello hello;
    hello.release = "wild";
    hello.client = random_() | 1U;
    hello.engine = random_();
    hello.engine_id = "wild";
    hello.nonce = random_();
    hello.read_only = one_in(4);
    auto connected = transport::connect_link(socket_, hello, std::chrono::steady_clock::now() + std::chrono::seconds(60));
    if (!connected.link) return false;
    if (connected.arena_fd >= 0) close(connected.arena_fd);
    link_ = connected.link;
    senders_.clear();
    // Answers are read by a thread, or not at all.
    std::unique_ptr<transport::LinkReader> reader;
    if (!one_in(3)) reader = std::make_unique<transport::LinkReader>(link_, nullptr, nullptr, nullptr);
    const std::uint64_t frames = random_() % 400;
    for (std::uint64_t i = 0; i < frames && link_->end() == transport::LinkEnd::open; ++i) say_something();
    if (one_in(4)) scribble();
    reader.reset();
    if (one_in(2)) link_->close();
    link_.reset();
    return true;
  }

 private:
  bool one_in(std::uint64_t n) { return random_() % n == 0; }
  std::uint64_t small() { return random_() % 8; }
  std::uint64_t any() { return one_in(3) ? random_() : one_in(2) ? small() : ~std::uint64_t{0} - small(); }
  protocol::SenderId sender() { return senders_.empty() || one_in(50) ? any() : senders_[random_() % senders_.size()]; }
  PageHash page() { return one_in(2) ? page_of(1, random_() % 64) : page_of(random_(), 0); }
  std::vector<PageHash> pages() {
    std::vector<PageHash> made(random_() % 40);
    for (auto& one : made) one = page();
    return made;
  }
  std::string noise(std::size_t bytes) {
    std::string made((bytes + 7) / 8 * 8, '\0');
    for (std::size_t i = 0; i < made.size(); i += 8) {
      const std::uint64_t word = random_();
      std::memcpy(made.data() + i, &word, sizeof word);
    }
    made.resize(bytes);
    return made;
  }
  void frame(std::uint8_t kind, std::uint8_t partition, std::uint8_t more, std::uint32_t message, std::string_view payload) {
    messages::FrameHead head{kind, partition, more, 0, message, any()};
    std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
    bytes += payload;
    link_->send(bytes);
  }

  template <class T>
  void say(FrameKind kind, const T& x) {
    std::string payload = messages::encode(x);
    if (one_in(100) && !payload.empty()) payload.resize(random_() % payload.size());
    if (one_in(100) && payload.size() >= 4)
      std::memset(payload.data() + random_() % (payload.size() - 3), 0xff, 4);  // a length bomb
    if (one_in(200)) payload += noise(random_() % 64);
    const auto partition = one_in(100) ? random_() : one_in(2) ? 0 : random_() % 4;
    frame(static_cast<std::uint8_t>(kind), static_cast<std::uint8_t>(partition), 0, static_cast<std::uint32_t>(random_()),
          payload);
  }

  void say_something() {
    switch (random_() % 20) {
      case 0: {
        protocol::AttachSender join{random_(), any(), any()};
        senders_.push_back(join.sender);
        return say(FrameKind::sender_join, join);
      }
      case 1:
        return say(FrameKind::attach_pool,
                   protocol::AttachPool{sender(), static_cast<protocol::NamespaceId>(small()),
                                        static_cast<protocol::PoolId>(small()), static_cast<std::uint32_t>(any()), one_in(2)});
      case 2:
        return say(FrameKind::namespace_ask, protocol::NamespaceAsk{one_in(9) ? noise(random_() % 6'000) : std::string("model")});
      case 3: {
        protocol::PoolAsk ask;
        ask.ns = static_cast<protocol::NamespaceId>(small());
        ask.pool.name = one_in(2) ? "latent" : noise(random_() % 300);
        ask.pool.shards = {static_cast<std::uint16_t>(any()), static_cast<std::uint16_t>(small()), 1};
        ask.pool.size = static_cast<protocol::PoolInfo::Size>(random_() % 3);
        ask.pool.object_bytes = any();
        for (std::uint64_t i = random_() % 5; i != 0; --i) ask.pool.range_bytes.push_back(one_in(2) ? any() : 4096);
        ask.pool.layout_digest = any();
        ask.ranks = {static_cast<std::uint16_t>(small()), static_cast<std::uint16_t>(any()), 1};
        return say(FrameKind::pool_ask, ask);
      }
      case 4: {
        protocol::GroupAsk ask;
        ask.ns = static_cast<protocol::NamespaceId>(small());
        ask.name = noise(random_() % 20);
        for (std::uint64_t i = random_() % 70; i != 0; --i)
          ask.pools.push_back({noise(random_() % 4),
                               {static_cast<std::uint16_t>(any()), 1, 1},
                               {1, 1, 1},
                               {static_cast<std::uint16_t>(any())},
                               one_in(2)});
        return say(FrameKind::group_ask, ask);
      }
      case 5:
      case 6:
      case 7: {
        protocol::PutBatch batch;
        batch.sender = sender();
        batch.batch = any();
        batch.ns = static_cast<protocol::NamespaceId>(one_in(3) ? any() : 0);
        batch.level = static_cast<AckLevel>(random_() % 3);
        batch.time_left = any();
        batch.has_parent = one_in(2);
        batch.parent = page();
        for (std::uint64_t i = random_() % 40; i != 0; --i)
          batch.pages.push_back(
              {page(), static_cast<std::uint32_t>(any()), static_cast<std::uint32_t>(one_in(2) ? any() : protocol::kNoParent)});
        for (std::uint64_t i = random_() % 40; i != 0; --i)
          batch.items.push_back(
              {static_cast<std::uint32_t>(any()), static_cast<std::uint32_t>(one_in(20) ? any() : random_() % 40),
               static_cast<protocol::PoolId>(one_in(4) ? any() : 0), static_cast<std::uint32_t>(one_in(4) ? any() : 0),
               static_cast<protocol::Generation>(one_in(4) ? any() : 0), one_in(2) ? any() : 65'536});
        return say(FrameKind::put_batch, batch);
      }
      case 8:
      case 9: {
        protocol::GrantResults results;
        results.sender = sender();
        for (std::uint64_t i = random_() % 20; i != 0; --i)
          results.results.push_back({static_cast<std::uint32_t>(small()), one_in(2) ? random_() % 4'000 : any(),
                                     static_cast<protocol::GrantOutcome>(random_() % 3), static_cast<std::uint32_t>(any()),
                                     static_cast<std::uint32_t>(any())});
        for (std::uint64_t i = random_() % 20; i != 0; --i) results.checksums.push_back(random_());
        // Never a guess that could be right: to take back an own object's bytes is what every client may do.
        for (std::uint64_t i = random_() % 4; i != 0; --i)
          results.bad.push_back({page(), ~random_() | 1ULL << 60U, static_cast<protocol::NamespaceId>(any()),
                                 static_cast<protocol::PoolId>(any()), static_cast<std::uint32_t>(any())});
        return say(FrameKind::grant_results, results);
      }
      case 10: {
        protocol::Withdraw withdraw{sender(), {}};
        for (std::uint64_t i = random_() % 20; i != 0; --i) withdraw.items.push_back({any(), static_cast<std::uint32_t>(any())});
        return say(FrameKind::withdraw, withdraw);
      }
      case 11: {
        protocol::ChecksumAnswers answers{sender(), {}, {}};
        for (std::uint64_t i = random_() % 20; i != 0; --i)
          answers.answers.push_back({any(), static_cast<std::uint32_t>(any()), static_cast<std::uint32_t>(any())});
        return say(FrameKind::checksum_answers, answers);
      }
      case 12:
      case 13: {
        protocol::LookupAsk ask;
        ask.token = any();
        ask.engine = any();
        ask.group = static_cast<protocol::GroupId>(one_in(2) ? any() : 0);
        ask.has_request = one_in(2);
        ask.request = {any(), any()};
        ask.probe = one_in(2);
        ask.time_left = any();
        ask.lease_time = any();
        ask.pages = pages();
        return say(FrameKind::lookup_ask, ask);
      }
      case 14:
        return say(FrameKind::lease_call, protocol::LeaseCall{{random_(), random_()}, any(), static_cast<std::uint32_t>(any())});
      case 15: return say(FrameKind::load_begin, protocol::LoadBegin{any(), sender(), any(), {random_(), any()}, any()});
      case 16: return say(FrameKind::load_end, protocol::LoadEnd{any(), sender(), {random_(), any()}});
      case 17: {
        if (one_in(3)) return say(FrameKind::stats_ask, messages::Nothing{});
        if (one_in(2)) return say(FrameKind::clients_ask, messages::Nothing{});
        if (one_in(9)) return say(FrameKind::namespace_close, protocol::NamespaceClose{static_cast<protocol::NamespaceId>(any())});
        if (one_in(9)) return say(FrameKind::report, messages::Report{one_in(50) ? noise(random_() % 300) : std::to_string(random_() % 8), {{"x", random_()}}});
        if (one_in(2)) return say(FrameKind::epoch_ask, protocol::EpochAsk{noise(random_() % 300), {random_(), random_()}});
        return say(FrameKind::want_events, messages::Wanted{one_in(2)});
      }
      case 18: {
        if (one_in(2)) return say(FrameKind::flush_ask, protocol::FlushAsk{any(), static_cast<AckLevel>(random_() % 3)});
        if (one_in(20)) return say(FrameKind::sender_gone, messages::SenderName{sender()});
        protocol::RemoveAsk ask;  // of what nobody has
        ask.what = protocol::RemoveAsk::What::page;
        ask.ns = static_cast<protocol::NamespaceId>(any());
        ask.pages = {page_of(random_(), 1)};
        return say(FrameKind::remove_ask, ask);
      }
      default: break;
    }
    // Nothing well formed.
    if (!one_in(20)) return;
    switch (random_() % 5) {
      case 0: link_->send(noise(1 + random_() % 64)); break;
      case 1: frame(static_cast<std::uint8_t>(random_()), 0, 0, 1, noise(random_() % 4'096)); break;
      case 2:
        for (std::uint32_t i = 0; i < 20; ++i) frame(7, 0, 1, i, noise(1'000));
        break;  // messages that never end
      case 3:
        for (std::uint32_t i = 0; i < 400; ++i) frame(7, 0, 1, 1, long_);
        break;  // one that goes on and on
      default: link_->send(noise(transport::kMaxFrameBytes)); break;
    }
  }

  // Writes over the rings that it shares with the store.
  void scribble() {
    std::ifstream maps("/proc/self/maps");
    const int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    for (std::string line; std::getline(maps, line);) {
      if (line.find("kvonce-link") == std::string::npos) continue;
      unsigned long long begin = 0;
      unsigned long long end = 0;
      if (std::sscanf(line.c_str(), "%llx-%llx", &begin, &end) != 2) continue;  // NOLINT
      const std::uint64_t count = (end - begin) / 8;
      for (int i = 0; i < 3'000; ++i) {
        const std::uint64_t word = any();
        const std::uint64_t at = begin + 8 * (one_in(2) ? random_() % 64 : random_() % count);
        // Not by itself: the mapping goes when the link ends.
        static_cast<void>(!pwrite(memory, &word, sizeof word, static_cast<off_t>(at)));
      }
    }
    close(memory);
    link_->send("?");
  }

  std::string socket_;
  std::mt19937_64 random_;
  const std::string long_ = noise(128U << 10U);
  std::shared_ptr<transport::Link> link_;
  std::vector<protocol::SenderId> senders_;
};

}  // namespace

std::string wild(const Line& line) {
  Wild client(line.text("socket"), line.number("seed", 1));
  std::uint64_t let_in = 0;
  for (std::uint64_t i = 0; i < line.number("rounds", 1); ++i) let_in += client.round() ? 1 : 0;
  return "let_in=" + std::to_string(let_in);
}

// Every message that names a rank, in the name of another process's rank: each on a connection of its own, which has to end.
std::string forge(const Line& line) {
  const std::uint64_t sender = line.number("sender");
  std::uint64_t ended = 0;
  std::uint64_t tried = 0;
  const auto say = [&](FrameKind kind, const auto& message) {
    transport::Hello hello;
    hello.client = runtime::random_bits() | 1U;
    hello.engine = 1;
    hello.engine_id = "forger";
    hello.nonce = runtime::random_bits();
    auto connected =
        transport::connect_link(line.text("socket"), hello, std::chrono::steady_clock::now() + std::chrono::seconds(60));
    ++tried;
    if (!connected.link) return;
    close(connected.arena_fd);
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    transport::LinkReader reader(connected.link, nullptr, nullptr, [&](transport::LinkEnd) {
      const std::lock_guard lock(mutex);
      over = true;
      changed.notify_all();
    });
    messages::FrameHead head;
    head.kind = static_cast<std::uint8_t>(kind);
    messages::send_frames(head, 1, message, [&](std::string_view frame) { return connected.link->send(frame); });
    std::unique_lock lock(mutex);
    if (changed.wait_for(lock, std::chrono::seconds(20), [&] { return over; })) ++ended;
  };
  protocol::GrantResults landed;
  landed.sender = sender;
  protocol::GrantResults abandoned;
  abandoned.sender = sender;
  for (std::uint32_t claim = 0; claim < 16; ++claim)
    for (std::uint64_t epoch = 1; epoch < 64; ++epoch) {
      landed.results.push_back({claim, epoch, protocol::GrantOutcome::landed, 0, 0});
      abandoned.results.push_back({claim, epoch, protocol::GrantOutcome::abandoned, 0, 0});
    }
  protocol::Withdraw withdraw{sender, {}};
  for (std::uint64_t batch = 0; batch < 64; ++batch) withdraw.items.push_back({batch, 0});
  protocol::PutBatch put;
  put.sender = sender;
  say(FrameKind::grant_results, landed);
  say(FrameKind::grant_results, abandoned);
  say(FrameKind::withdraw, withdraw);
  say(FrameKind::put_batch, put);
  say(FrameKind::checksum_answers, protocol::ChecksumAnswers{sender, {}, {}});
  say(FrameKind::attach_pool, protocol::AttachPool{sender, 0, 0, 0, false});
  say(FrameKind::load_begin, protocol::LoadBegin{1, sender, 1, {1, 1}, 1'000'000});
  say(FrameKind::load_end, protocol::LoadEnd{1, sender, {1, 1}});
  say(FrameKind::sender_join, protocol::AttachSender{sender, 1, 1});
  say(FrameKind::sender_gone, messages::SenderName{sender});
  return "tried=" + std::to_string(tried) + " ended=" + std::to_string(ended);
}

}  // namespace kvonce::process_test
