// SPDX-License-Identifier: Apache-2.0
// The one place where CAF 0.17 and CAF 1.x differ. Everything of ours is written against the names here.
//
// What both lines ask for: one struct a message (no atoms), non-generic lambdas as handlers, no groups, no CAF streams, nothing
// of caf::optional, caf::variant or caf::string_view. Include this header in .cpp files; headers get by with <caf/fwd.hpp>.
#pragma once

#include <caf/config.hpp>

// CAF_VERSION is the octal literal 0100 on 1.1.0, so only its parts are ever tested.
#if defined(CAF_VERSION_MAJOR)
#define KVONCE_CAF_MODERN (CAF_VERSION_MAJOR >= 1)
#else
#define KVONCE_CAF_MODERN (CAF_MAJOR_VERSION >= 1)
#endif

#include <caf/actor.hpp>
#include <caf/actor_addr.hpp>
#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/error.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#if KVONCE_CAF_MODERN
#include <caf/anon_mail.hpp>
#include <caf/default_enum_inspect.hpp>
#include <caf/disposable.hpp>
#include <caf/init_global_meta_objects.hpp>
#include <caf/result.hpp>
#else
#include <caf/atom.hpp>
#include <caf/meta/type_name.hpp>
#include <caf/system_messages.hpp>
#endif

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvonce::compat {

// ---- typed interfaces ---------------------------------------------------------------------------------------------------------

namespace detail {

template <class Signature>
struct MakeSignature;

#if KVONCE_CAF_MODERN
template <class R, class... Ins>
struct MakeSignature<R(Ins...)> {
  using type = caf::result<R>(Ins...);
};
#else
template <class R, class... Ins>
struct MakeSignature<R(Ins...)> {
  using type = typename caf::replies_to<Ins...>::template with<R>;
};
template <class... Ins>
struct MakeSignature<void(Ins...)> {
  using type = caf::reacts_to<Ins...>;
};
#endif

}  // namespace detail

/// A typed actor handle from plain function types: `Interface<PutVerdicts(PutBatch), void(Flush)>`.
template <class... Signatures>
using Interface = caf::typed_actor<typename detail::MakeSignature<Signatures>::type...>;

template <class Handle>
using BehaviorOf = typename Handle::behavior_type;

/// A promise to answer the request being handled, later: `auto p = promise<Verdicts>(self); ... p.deliver(verdicts)`. On 0.17 a
/// promise that is still pending when its actor exits is never broken: answer the waiters in the exit handler.
template <class R, class Self>
caf::typed_response_promise<R> promise(Self* self) {
  return self->template make_response_promise<R>();
}

// ---- inspection ---------------------------------------------------------------------------------------------------------------
// template <class Inspector>
// auto inspect(Inspector& f, PageReady& x) {
//   return compat::fields(f, x, "PageReady", compat::field("rank", x.rank), compat::field("pages", x.pages));
// }

#if KVONCE_CAF_MODERN
template <class T>
struct Field {
  const char* name;
  T* value;
};

template <class T>
Field<T> field(const char* name, T& value) {
  return {name, &value};
}

namespace detail {

template <class Inspector, class T>
auto bind_field(Inspector& f, Field<T> x) {
  if constexpr (std::is_enum_v<T>) {
    using Number = std::underlying_type_t<T>;
    return f.field(
        x.name, [x] { return static_cast<Number>(*x.value); },
        [x](Number n) {
          *x.value = static_cast<T>(n);
          return true;
        });
  } else {
    return f.field(x.name, *x.value);
  }
}

}  // namespace detail

template <class Inspector, class T, class... Fields>
bool fields(Inspector& f, T& x, const char* type_name, Fields... xs) {
  return f.object(x).pretty_name(type_name).fields(detail::bind_field(f, xs)...);
}
#else
template <class T>
T& field(const char* /*name*/, T& value) {
  return value;
}

template <class Inspector, class T, class... Fields>
auto fields(Inspector& f, T& /*x*/, const char* type_name, Fields&... xs) {
  return f(caf::meta::type_name(type_name), xs...);
}
#endif

// ---- state --------------------------------------------------------------------------------------------------------------------

/// The state of a stateful actor, by reference.
template <class Self>
auto& state_of(Self* self) {
#if KVONCE_CAF_MODERN
  return self->state();
#else
  return self->state;
#endif
}

// ---- sending ------------------------------------------------------------------------------------------------------------------

/// Sends one message without asking for an answer.
template <class Self, class Handle, class... Ts>
void tell(Self* self, const Handle& to, Ts&&... xs) {
#if KVONCE_CAF_MODERN
  self->mail(std::forward<Ts>(xs)...).send(to);
#else
  self->send(to, std::forward<Ts>(xs)...);
#endif
}

/// The same after `delay`.
template <class Self, class Handle, class... Ts>
void tell_later(Self* self, const Handle& to, std::chrono::nanoseconds delay, Ts&&... xs) {
#if KVONCE_CAF_MODERN
  self->mail(std::forward<Ts>(xs)...).delay(delay).send(to);
#else
  self->delayed_send(to, delay, std::forward<Ts>(xs)...);
#endif
}

/// Asks; continue with `.then(on_value, on_error)`. Between processes never without a limit: on the loss of a peer, pending
/// requests only time out.
template <class Self, class Handle, class Timeout, class... Ts>
auto ask(Self* self, const Handle& to, Timeout timeout, Ts&&... xs) {
#if KVONCE_CAF_MODERN
  return self->mail(std::forward<Ts>(xs)...).request(to, timeout);
#else
  return self->request(to, timeout, std::forward<Ts>(xs)...);
#endif
}

/// For ask() inside one process only.
inline constexpr auto kForever = caf::infinite;

/// Sends without a sender; from any thread.
template <class Handle, class... Ts>
void anon_tell(const Handle& to, Ts&&... xs) {
#if KVONCE_CAF_MODERN
  caf::anon_mail(std::forward<Ts>(xs)...).send(to);
#else
  caf::anon_send(to, std::forward<Ts>(xs)...);
#endif
}

/// Hands the request being handled on to another actor, which answers the asker: `return delegate(self, store, batch);`.
template <class Self, class Handle, class... Ts>
auto delegate(Self* self, const Handle& to, Ts&&... xs) {
#if KVONCE_CAF_MODERN
  return self->mail(std::forward<Ts>(xs)...).delegate(to);
#else
  return self->delegate(to, std::forward<Ts>(xs)...);
#endif
}

// ---- monitoring ---------------------------------------------------------------------------------------------------------------

/// Whom an actor watches, and what to do when one ends. A member of the actor's state: 0.17 has one down handler an actor, which
/// this table sets at the first watch() and which points back at the table. Not movable for that reason; for its own actor only.
class WatchTable {
 public:
  /// Runs once, in the watching actor, with the reason of the end; at once (by a message) when the actor has ended already.
  using OnDown = std::function<void(const caf::error&)>;

  WatchTable() = default;
  WatchTable(const WatchTable&) = delete;
  WatchTable& operator=(const WatchTable&) = delete;

  /// Watching the same actor again replaces what is done.
  template <class Self, class Handle>
  void watch(Self* self, const Handle& whom, OnDown on_down) {
    unwatch(self, whom);
    const auto address = whom.address();
#if KVONCE_CAF_MODERN
    entries_.push_back({address, std::move(on_down), {}});
    entries_.back().handle = self->monitor(whom, [this, address](const caf::error& reason) { down(address, reason); });
#else
    entries_.push_back({address, std::move(on_down)});
    if (!handler_set_) {
      handler_set_ = true;
      self->set_down_handler([this](caf::down_msg& message) { down(message.source, message.reason); });
    }
    self->monitor(whom);
#endif
  }

  template <class Self, class Handle>
  void unwatch([[maybe_unused]] Self* self, const Handle& whom) {
    const auto address = whom.address();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->address == address) {
#if KVONCE_CAF_MODERN
        it->handle.dispose();
#else
        self->demonitor(address);
#endif
        entries_.erase(it);
        return;
      }
    }
  }

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    caf::actor_addr address;
    OnDown on_down;
#if KVONCE_CAF_MODERN
    caf::disposable handle;
#endif
  };

  void down(const caf::actor_addr& address, const caf::error& reason) {
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->address == address) {
        // Taken out first: what runs now may well watch the successor.
        const auto on_down = std::move(it->on_down);
        entries_.erase(it);
        on_down(reason);
        return;
      }
    }
  }

  std::vector<Entry> entries_;
#if !KVONCE_CAF_MODERN
  bool handler_set_ = false;
#endif
};

// ---- errors -------------------------------------------------------------------------------------------------------------------

/// Specialised by KVONCE_ERROR_ENUM.
template <class E>
struct ErrorCategory;

/// An error value for an enum declared with KVONCE_ERROR_ENUM.
template <class E>
caf::error fail(E code) {
#if KVONCE_CAF_MODERN
  return caf::make_error(code);
#else
  return caf::error{static_cast<std::uint8_t>(code), ErrorCategory<E>::kAtom};
#endif
}

/// The code in `error`, when it is one of E.
template <class E>
std::optional<E> code_of(const caf::error& error) {
  if (!error) {
    return std::nullopt;
  }
#if KVONCE_CAF_MODERN
  if (error.category() != caf::type_id_v<E>) {
    return std::nullopt;
  }
#else
  if (error.category() != ErrorCategory<E>::kAtom) {
    return std::nullopt;
  }
#endif
  return static_cast<E>(error.code());
}

/// Lets CAF print E's errors through `to_string(E)`.
template <class E>
void register_error_category([[maybe_unused]] caf::actor_system_config& config) {
#if !KVONCE_CAF_MODERN
  // The one-argument add_error_category<E>(atom) does not compile in 0.17.6.
  config.add_error_category(ErrorCategory<E>::kAtom, [](std::uint8_t code, caf::atom_value, const caf::message&) {
    return to_string(static_cast<E>(code));
  });
#endif
}

// ---- start of a process -------------------------------------------------------------------------------------------------------

/// Registers the message types of an id block (KVONCE_BEGIN_TYPES ... KVONCE_END_TYPES). A type that is not registered fails
/// silently when it is sent to another process.
template <class IdBlock>
void register_types([[maybe_unused]] caf::actor_system_config& config) {
#if KVONCE_CAF_MODERN
  caf::init_global_meta_objects<IdBlock>();
#else
  config.add_message_types<IdBlock>();
#endif
}

/// Must run before the first actor system of the process is configured.
inline void register_core_types() {
#if KVONCE_CAF_MODERN
  caf::core::init_global_meta_objects();
#endif
}

/// Sets a CAF setting by its 0.17 name, for example "scheduler.max-threads".
template <class T>
void set_option(caf::actor_system_config& config, const std::string& name, T&& value) {
#if KVONCE_CAF_MODERN
  config.set("caf." + name, std::forward<T>(value));
#else
  config.set(name, std::forward<T>(value));
#endif
}

}  // namespace kvonce::compat

// ---- declarations at namespace scope, which only macros can make --------------------------------------------------------------

// Message types, outside of any namespace. The qualified names are the wire contract, the order within a block is not:
//   KVONCE_BEGIN_TYPES(kvonce_messages, 0)
//   KVONCE_TYPE(kvonce_messages, kvonce::messages::PageReady)
//   KVONCE_END_TYPES(kvonce_messages)
// The block is then caf::id_block::kvonce_messages; `offset` keeps the ids of several blocks apart.
#define KVONCE_BEGIN_TYPES(block, offset) CAF_BEGIN_TYPE_ID_BLOCK(block, ::caf::first_custom_type_id + (offset))
#define KVONCE_TYPE(block, ...) CAF_ADD_TYPE_ID(block, (__VA_ARGS__))
#define KVONCE_END_TYPES(block) CAF_END_TYPE_ID_BLOCK(block)

// Makes an enum (uint8_t, 0 = no error) an error category, outside of any namespace; the name has at most 10 characters of
// [a-zA-Z0-9_]. Needs std::string to_string(E) beside the enum; on 1.x also from_string, from_integer, and a KVONCE_TYPE line.
#if KVONCE_CAF_MODERN
#define KVONCE_ERROR_ENUM(type, name) CAF_ERROR_CODE_ENUM(type)
#else
#define KVONCE_ERROR_ENUM(type, name)                           \
  template <>                                                   \
  struct kvonce::compat::ErrorCategory<type> {                  \
    static constexpr caf::atom_value kAtom = caf::atom((name)); \
  };
#endif

// For types that are sent inside one process only (handles to shared memory, promises): sending one to another process fails.
#define KVONCE_LOCAL_TYPE(type) CAF_ALLOW_UNSAFE_MESSAGE_TYPE(type)
