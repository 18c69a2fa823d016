// SPDX-License-Identifier: Apache-2.0
#include "runtime/service.hpp"

#include <grp.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <kvonce/version.hpp>

#include "actors/client_sessions.hpp"
#include "runtime/store_info.hpp"
#include "runtime/store_settings.hpp"
#include "transport/socket_path.hpp"

namespace kvonce::runtime {

namespace {

// About as long as a rank takes from an answer to its next message. Only for as many ranks as leave cores to those that copy.
constexpr std::chrono::microseconds kServerSpin{100};

// The handshake has no room for long stories.
constexpr std::size_t kMostWhyCold = 1'024;

/// The number of a group that is given by name or number.
std::optional<std::uint32_t> group_number(const std::string& text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  std::vector<char> buffer(std::size_t{64} << 10U);
  group entry{};
  group* found = nullptr;
  if (getgrnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return std::nullopt;
  return found->gr_gid;
}

}  // namespace

Error StoreService::reserve() {
  if (!core_.config.serve_group.empty()) {
    group_ = group_number(core_.config.serve_group);
    if (!group_)
      return bad("serve_group is '" + core_.config.serve_group + "': must be the name or number of a group of this system");
    if (const std::string closed = transport::closed_to_group(core_.config.serve.substr(5), *group_); !closed.empty())
      return bad("serve_group is '" + core_.config.serve_group + "': " + closed);
  }
  place_ = std::make_shared<transport::SocketPath>();
  std::string wrong = place_->take(core_.config.serve.substr(5), group_);
  return wrong.empty() ? Error{} : bad(std::move(wrong));
}

Error StoreService::start(std::uint64_t incarnation) {
  StoreInfo info;
  info.arena_bytes = core_.arena->bytes();
  info.sealed = core_.config.arena_file.empty();
  info.checksums = core_.config.checksums;
  for (const PartitionLayout& part : core_.layout)
    info.partitions.push_back({part.index_offset, part.index_bytes, part.slots_offset, part.slots_bytes});
  info.settings = store_settings(core_.config);
  info.warm = core_.store_start.warm;
  info.why_cold = core_.store_start.why_cold.substr(0, kMostWhyCold);
  info.restored_objects = core_.store_start.restored_objects;
  info_ = messages::encode(info);

  std::string text;
  read_only_ = core_.arena->read_only_fd(&text);
  if (!read_only_) return {Reason::no_space, "serve: no descriptor for clients that only read: " + text};

  transport::LinkServerConfig config;
  config.path = core_.config.serve.substr(5);
  config.max_clients = core_.config.max_clients;
  config.release = version();
  config.allowed_gid = group_;
  config.place = std::move(place_);
  config.spin = kServerSpin;
  config.spin_clients = std::max(1U, std::thread::hardware_concurrency() / 2);
  const auto sessions = core_.host->sessions();
  transport::LinkServerCallbacks callbacks;
  callbacks.greet = [this, incarnation](const transport::Hello& hello, const transport::PeerProcess&) {
    transport::Greeting greeting;
    greeting.welcome.emplace();
    greeting.welcome->release = version();
    greeting.welcome->incarnation = incarnation;
    greeting.welcome->info = info_;
    greeting.arena_fd = hello.read_only ? read_only_.get() : core_.arena->fd();
    return greeting;
  };
  callbacks.opened = [sessions](const std::shared_ptr<transport::Link>& link) { sessions->opened(link); };
  callbacks.frame = [sessions](transport::Link& link, std::string_view frame) { return sessions->frame(link, frame); };
  callbacks.full = [sessions] { return sessions->full(); };
  callbacks.turn_over = [sessions] { sessions->turn_over(); };
  callbacks.closed = [sessions](const std::shared_ptr<transport::Link>& link, transport::LinkEnd) { sessions->closed(link); };
  callbacks.gone = [sessions](const std::shared_ptr<transport::Link>& link) { sessions->gone(link); };
  auto started = transport::LinkServer::start(std::move(config), std::move(callbacks));
  if (!started.server) return started.error;
  server_ = std::move(started.server);
  sessions->intake()->set_wake([server = server_.get()] { server->wake(); });
  return {};
}

void StoreService::stop_accepting() {
  if (server_) server_->stop_accepting();
}

void StoreService::stop() {
  if (!server_) return;
  if (core_.host) core_.host->sessions()->intake()->set_wake({});
  server_->stop();
}

}  // namespace kvonce::runtime
