// SPDX-License-Identifier: Apache-2.0
//
// The path within one address space (also into and out of a mapped arena): the movers' threads copy.
#pragma once

#include <functional>
#include <memory>

#include "transport/mover.hpp"
#include "transport/transport.hpp"

namespace kvonce::transport {

class MemcpyTransport final : public Transport {
 public:
  // `mover` is set, and may be shared with others.
  explicit MemcpyTransport(std::shared_ptr<Mover> mover);

  const char* name() const override { return "memcpy"; }
  ChecksumPlace checksum_place() const override { return ChecksumPlace::fused_with_copy; }
  Submitted submit(CopyBatch&& batch) override;
  // The fence of this path is the end of a slice: `closed` comes that soon.
  void fence(PeerId peer, std::function<void()> closed) override;
  // For small batches, see Mover::run_inline.
  Submitted run_inline(CopyBatch&& batch);

 private:
  std::shared_ptr<Mover> mover_;
};

}  // namespace kvonce::transport
