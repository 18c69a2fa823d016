// SPDX-License-Identifier: Apache-2.0
// Makes the order that CAF gives to an actor's messages visible to ThreadSanitizer. Debian's libcaf is not instrumented: without
// this, TSan takes every access to an actor's state from two workers for a race, and real races drown. In builds without TSan,
// TsanOrdered<Base> is Base itself.
#pragma once

#include "messages/compat.hpp"

#if defined(__SANITIZE_THREAD__) && !KVONCE_CAF_MODERN
#define KVONCE_TSAN_ORDER 1
#include <caf/execution_unit.hpp>
#include <caf/mailbox_element.hpp>
#include <sanitizer/tsan_interface.h>
#else
#define KVONCE_TSAN_ORDER 0
#endif

namespace kvonce::compat {

#if KVONCE_TSAN_ORDER

/// Put between an event-based base class and what derives from it: `stateful_actor<State, TsanOrdered<StoreActor::base>>`.
/// What happened before a message was sent, or in an earlier handler, happened before the handler that runs now.
template <class Base>
class TsanOrdered : public Base {
 public:
  using Base::Base;
  using Base::enqueue;

  void enqueue(caf::mailbox_element_ptr message, caf::execution_unit* unit) override {
    __tsan_release(this);
    Base::enqueue(std::move(message), unit);
  }

  void initialize() override {
    Base::initialize();
    __tsan_release(this);
  }

  caf::invoke_message_result consume(caf::mailbox_element& message) override {
    __tsan_acquire(this);
    const auto result = Base::consume(message);
    __tsan_release(this);
    return result;
  }

  // Frees what is left in the mailbox.
  bool cleanup(caf::error&& reason, caf::execution_unit* unit) override {
    __tsan_acquire(this);
    return Base::cleanup(std::move(reason), unit);
  }

  void on_destroy() override {
    __tsan_acquire(this);
    Base::on_destroy();
  }
};

#else

template <class Base>
using TsanOrdered = Base;

#endif

}  // namespace kvonce::compat
