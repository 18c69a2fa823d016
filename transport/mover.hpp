// SPDX-License-Identifier: Apache-2.0
//
// The threads that copy page bytes within one address space. They stand outside of any actor scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "transport/checksum.hpp"
#include "transport/transport.hpp"

namespace kvonce::transport {

struct MoverConfig {
  unsigned threads = 2;            // 1 to 16; anything else is taken as the nearest of these
  std::size_t max_batches = 4096;  // accepted and not finished; beyond: refused as queue_full
  Kernel kernel = Kernel::automatic;  // one that this CPU has not is taken as automatic
  // For tests: the clock that deadlines are compared with; empty: steady_clock. Called from all mover threads, between
  // any two slices. After moving it call Mover::wake.
  std::function<TimePoint()> now;
};

struct MoverStats {
  std::uint64_t batches_accepted = 0;
  std::uint64_t batches_refused = 0;
  std::uint64_t bytes_copied = 0;  // also of items that ended as expired, canceled or mismatch
};

class MoverState;

// Batches take turns, slice by slice, so that a big one does not starve a small one; the items of one batch are shared
// by all idle threads and begun in order. See transport.hpp for what holds for every batch.
class Mover {
 public:
  explicit Mover(MoverConfig config = {});
  ~Mover();  // stop()
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  Submitted submit(CopyBatch&& batch);
  // Copies on the calling thread and returns the finished operation; `done` has been called by then. Nobody waits in
  // here: a batch whose event has not fired is submitted instead, and its operation may be pending.
  Submitted run_inline(CopyBatch&& batch);
  // As Transport::fence.
  void fence(PeerId peer, std::function<void()> closed);
  // Ends everything queued as canceled, what is being copied at its next slice, calls all `done`, joins the threads.
  // Then submit answers `stopped`. Must not be called from a callback of a batch.
  void stop();
  // Copies one claim (about one slice) of what is queued on the calling thread; false when nothing is. For threads that
  // wait for a copy anyway. Completions are called on this thread.
  bool help();
  // Waits until so much is queued that another thread is worth waking for it (true: call help), or `done` answers true, or
  // until then. Whoever makes `done` true calls wake_helpers with the same `waits_for`, any address: only those who wait for it
  // are woken. `done` is asked under a lock: it must be quick and take none.
  bool wait_to_help(TimePoint until, const void* waits_for, const std::function<bool()>& done);
  void wake_helpers(const void* waits_for);
  // Looks at deadlines and events now. Only needed when an injected clock was moved.
  void wake();

  MoverStats stats() const;
  // Less than configured when the system refused threads; with none, submit answers `stopped`.
  unsigned threads() const { return static_cast<unsigned>(threads_.size()); }

 private:
  std::shared_ptr<MoverState> state_;
  std::vector<std::thread> threads_;
};

}  // namespace kvonce::transport
