// SPDX-License-Identifier: Apache-2.0
#include "bench/crew.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <limits>
#include <system_error>

#include "bench/measure.hpp"
#include "bench/rank_process.hpp"

namespace kvonce::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Of one command: far more than any takes on a slow machine, so that what hangs is told.
constexpr std::chrono::seconds kCommandTime{300};
constexpr std::chrono::seconds kMemberEndTime{30};
constexpr std::size_t kRemoveBatch = 65'536;

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string own_program() {
  char path[4'096];
  const ssize_t got = readlink("/proc/self/exe", path, sizeof(path));
  if (got <= 0 || got == sizeof(path)) throw Failed{"this program's own path cannot be read"};
  return {path, static_cast<std::size_t>(got)};
}

OwnStore::Spec store_spec(const CrewSpec& spec) {
  OwnStore::Spec store;
  // Pages of this run, those before it, and room for what was removed but still lies in a lease or a quarantine.
  const std::uint64_t pages = spec.pages + kFirstKeys;
  store.memory_bytes = arena_bytes_for(pages, pages, pages * spec.page_bytes, 1);
  store.payload_bytes = spec.pages * spec.page_bytes;
  store.index_pages = std::max<std::uint64_t>(pages + 1'024, 4'096);
  return store;
}

}  // namespace

Crew::Crew(const Options& options, const CrewSpec& spec) : options_(options), spec_(spec), engine_("kvonce bench " + hex(fresh_seed())) {
  if (board_.get() == nullptr) throw Failed{"the system has no memory to share between processes"};
  store_ = std::make_unique<StoreUse>(options.via, store_spec(spec));
  const auto begin = Clock::now();
  members_.resize(spec.ranks);
  for (std::size_t r = 0; r < spec.ranks; ++r) start_member(r);
  for (std::size_t r = 0; r < spec.ranks; ++r) finish_restart(r);
  seconds_to_start_ = std::chrono::duration<double>(Clock::now() - begin).count();

  StageSpec own;
  own.pages = spec.pages;
  own.page_bytes = spec.page_bytes;
  own.rows = spec.own_rows;
  own.populate = false;
  own.store = store_->address();
  own.engine = engine_;
  own.ns = engine_;
  own.first_rank = spec.ranks;
  own.group_ranks = spec.ranks + 1;
  own.read_only = true;
  memory_.emplace_back(own.rows * Stage::row_stride(own));
  auto started = Stage::start(own, memory_);
  if (!started.stage) throw Failed{started.error};
  stage_ = std::move(started.stage);

  RuntimeConfig cleaner;
  cleaner.engine_id = engine_;
  cleaner.store = store_->address();
  auto cleans = Runtime::start(cleaner);
  if (!cleans) throw Failed{cleans.error.text};
  cleaner_ = std::move(*cleans);
  const auto ns = cleaner_->open_namespace(engine_);
  if (!ns) throw Failed{ns.error.text};
  cleaned_ = ns.value;
}

Crew::~Crew() {
  // After end() there are none. Else something has failed, and what they are at is of no matter.
  members_.clear();
  try {
    // A store that is somebody else's is left as it was.
    if (cleaner_ && options_.via != "spawn") {
      const auto removed = cleaner_->remove_namespace(cleaned_);
      if (removed) removed.value->wait();
    }
  } catch (const Failed&) {
    // Whatever is left is ended by force.
  }
}

Json Crew::start_command(std::size_t rank) const {
  return {{"do", "start"},
          {"store", store_->address()},
          {"engine", engine_},
          {"ns", engine_},
          {"rank", rank},
          {"group_ranks", spec_.ranks + 1},  // the last one is this process, that looks at what was stored
          {"pages", spec_.pages},
          {"page_bytes", spec_.page_bytes},
          {"rows", spec_.rows},
          {"movers", options_.movers},
          {"kernel", options_.kernel},
          {"inline_copy_bytes", options_.inline_copy_bytes},
          {"populate", spec_.populate}};
}

void Crew::start_member(std::size_t rank) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Failed{"no socket: " + std::generic_category().message(errno)};
  Descriptor ours(ends[0]);
  const Descriptor theirs(ends[1]);
  Member& member = members_[rank];
  member.process = ChildProcess::start(own_program(), {"bench", kRankCommand, std::to_string(getpid())},
                                       {{theirs.get(), kRankChannelFd}, {board_.fd(), kRankBoardFd}});
  member.channel = Channel(std::move(ours));
  tell(rank, start_command(rank));
}

void Crew::begin_restart(std::size_t rank) { start_member(rank); }

void Crew::finish_restart(std::size_t rank) {
  if (!answer(rank).value("verified_path", false)) throw Failed{"rank process " + std::to_string(rank) + " is not connected"};
}

void Crew::fail(std::size_t rank, const std::string& what) {
  int status = 0;
  const bool ended = members_[rank].process.wait_until(Clock::now() + std::chrono::seconds{1}, status);
  throw Failed{"rank process " + std::to_string(rank) + " " + (ended ? end_text(status) : what)};
}

void Crew::tell(std::size_t rank, const Json& command) {
  if (!members_[rank].channel.send(command)) fail(rank, "takes no commands");
}

Json Crew::answer(std::size_t rank) {
  Json value;
  switch (members_[rank].channel.receive(value, Clock::now() + kCommandTime)) {
    case Channel::Got::value: break;
    case Channel::Got::gone: fail(rank, "has closed its socket");
    case Channel::Got::late: fail(rank, "did not answer within " + std::to_string(kCommandTime.count()) + " s");
  }
  if (value.contains("error")) throw Failed{value["error"].get<std::string>()};
  return value;
}

Json Crew::ask(std::size_t rank, const Json& command) {
  tell(rank, command);
  return answer(rank);
}

std::vector<Json> Crew::ask_all(const Json& command) {
  std::vector<Json> answers;
  for (std::size_t r = 0; r < size(); ++r) tell(r, command);
  for (std::size_t r = 0; r < size(); ++r) answers.push_back(answer(r));
  return answers;
}

Crew::Timed Crew::timed(Json command) {
  const std::uint32_t number = next_number();
  command["number"] = number;
  command["ranks"] = size();
  command["lockstep"] = options_.lockstep;
  static_cast<void>(ask_all(command));
  const CpuMark before = cpu();
  board_->start(number);
  for (std::size_t r = 0; r < size(); ++r) static_cast<void>(answer(r));
  const CpuMark after = cpu();
  Timed out;
  out.reports = ask_all({{"do", "report"}});
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = std::numeric_limits<std::int64_t>::min();
  for (const Json& report : out.reports) {
    begin = std::min(begin, report.at("begin").get<std::int64_t>());
    end = std::max(end, report.at("end").get<std::int64_t>());
    for (const Json& one : report.at("ack_us")) out.ack_us.push_back(one);
  }
  out.seconds = std::chrono::duration<double>(Clock::duration(end - begin)).count();
  out.cpu = {after.ranks - before.ranks, after.store - before.store, after.self - before.self};
  return out;
}

void Crew::kill(std::size_t rank) {
  members_[rank].process.kill_now();
  members_[rank].channel = Channel();
}

CpuMark Crew::cpu() const {
  CpuMark mark;
  for (const Member& member : members_) mark.ranks += cpu_seconds_of(member.process.pid());
  if (store_->pid() > 0) mark.store = cpu_seconds_of(store_->pid());
  mark.self = process_cpu_seconds();
  return mark;
}

void Crew::remove(const std::vector<PageHash>& keys) {
  for (std::size_t begin = 0; begin < keys.size(); begin += kRemoveBatch) {
    const auto first = keys.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = keys.begin() + static_cast<std::ptrdiff_t>(std::min(begin + kRemoveBatch, keys.size()));
    const auto removed = cleaner_->remove_pages(cleaned_, {first, last});
    if (!removed) throw Failed{"remove refused: " + removed.error.text};
    removed.value->wait();
    if (removed.value->error()) throw Failed{"remove: " + removed.value->error().text};
  }
}

void Crew::end_members() {
  for (Member& member : members_)
    if (member.process.running()) static_cast<void>(member.channel.send({{"do", "end"}}));
  const auto deadline = Clock::now() + kMemberEndTime;
  std::string wrong;
  for (std::size_t r = 0; r < members_.size(); ++r) {
    int status = 0;
    if (!members_[r].process.running()) continue;
    if (!members_[r].process.wait_until(deadline, status)) {
      members_[r].process.kill_now();
      wrong = "rank process " + std::to_string(r) + " did not end";
    } else if (status != 0) {
      wrong = "rank process " + std::to_string(r) + " " + end_text(status);
    }
  }
  members_.clear();
  if (!wrong.empty()) throw Failed{wrong};
}

void Crew::end() {
  end_members();
  if (options_.via == "spawn") {
    stage_.reset();
    cleaner_.reset();
    store_->end();
  }
}

}  // namespace kvonce::bench
