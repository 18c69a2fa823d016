// SPDX-License-Identifier: Apache-2.0
#include "transport/mover.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "transport/mover_state.hpp"

namespace kvonce::transport {

Mover::Mover(MoverConfig config) {
  const unsigned wanted = std::clamp(config.threads, 1U, 16U);
  state_ = std::make_shared<MoverState>(std::move(config));
  // The embedding program's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // But for a fault of the thread itself: blocked, it would end the process past every handler that the program has for it.
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (unsigned i = 0; i < wanted; ++i) {
      threads_.emplace_back([state = state_] { state->thread_main(); });
      pthread_setname_np(threads_.back().native_handle(), "kvonce-mover");
    }
  } catch (const std::system_error&) {
    if (threads_.empty()) state_->stop();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Mover::~Mover() { stop(); }

Submitted Mover::submit(CopyBatch&& batch) { return state_->submit(std::move(batch)); }
Submitted Mover::run_inline(CopyBatch&& batch) { return state_->run_inline(std::move(batch)); }
void Mover::fence(PeerId peer, std::function<void()> closed) { state_->fence(peer, std::move(closed)); }
bool Mover::help() { return state_->help(); }
bool Mover::wait_to_help(TimePoint until, const void* waits_for, const std::function<bool()>& done) {
  return state_->wait_to_help(until, waits_for, done);
}
void Mover::wake_helpers(const void* waits_for) { state_->wake_helpers(waits_for); }
void Mover::wake() { state_->wake(); }
MoverStats Mover::stats() const { return state_->stats(); }

void Mover::stop() {
  state_->stop();
  for (auto& thread : threads_)
    if (thread.joinable()) thread.join();
}

}  // namespace kvonce::transport
