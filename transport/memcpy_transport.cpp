// SPDX-License-Identifier: Apache-2.0
#include "transport/memcpy_transport.hpp"

#include <cassert>
#include <utility>

namespace kvonce::transport {

MemcpyTransport::MemcpyTransport(std::shared_ptr<Mover> mover) : mover_(std::move(mover)) {
  assert(mover_ != nullptr);
}

Submitted MemcpyTransport::submit(CopyBatch&& batch) { return mover_->submit(std::move(batch)); }

void MemcpyTransport::fence(PeerId peer, std::function<void()> closed) { mover_->fence(peer, std::move(closed)); }

Submitted MemcpyTransport::run_inline(CopyBatch&& batch) { return mover_->run_inline(std::move(batch)); }

}  // namespace kvonce::transport
