// SPDX-License-Identifier: Apache-2.0
//
// Values that callers give, read and checked in one place. Reading them may run Python code (__index__, __repr__), which may do
// anything to lists and dicts: what is read next is held by a reference of its own.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "python/src/errors.hpp"
#include "python/src/process.hpp"

namespace kvonce::python {

/// The value as an error shows it: ASCII, cut when long. Never raises.
std::string shown(nb::handle value);

/// After a Python call has failed: forgets an Exception; lets what is none, as KeyboardInterrupt, go on.
void forget_exception();

/// The integer behind an int or an object with __index__; false where there is none in the range of 64 bits.
bool read_integer(nb::handle value, std::int64_t* integer);
bool read_integer(nb::handle value, std::uint64_t* integer);

[[noreturn]] void raise_not_integer(nb::handle value, const std::string& name, const std::string& least, const std::string& most);

/// The integer, in Integer's range; raises BadArgument with the name, the value and what is allowed.
template <class Integer>
Integer integer_of(nb::handle value, const std::string& name) {
  using Limits = std::numeric_limits<Integer>;
  std::conditional_t<Limits::is_signed, std::int64_t, std::uint64_t> wide = 0;
  if (!read_integer(value, &wide) || !std::in_range<Integer>(wide))
    raise_not_integer(value, name, std::to_string(Limits::min()), std::to_string(Limits::max()));
  return static_cast<Integer>(wide);
}

/// The text; raises BadArgument for another kind, and for one with lone surrogates, which UTF-8 does not have.
std::string text_of(nb::handle value, const std::string& name);

/// The seconds of a call as milliseconds(); raises BadArgument for what is no number.
std::chrono::milliseconds seconds_of(nb::handle value, const char* name, const char* allowed = "0.001 to 3,600");

/// A dict; raises BadArgument, with what it must be.
nb::dict dict_of(nb::handle value, const std::string& name, const std::string& allowed);

/// The object of a bound class; nullptr where it is of another, or None, which a cast to a pointer takes as a success.
template <class Bound>
Bound* bound(nb::handle value) {
  Bound* object = nullptr;
  return nb::try_cast(value, object) ? object : nullptr;
}

/// The i-th item of a list or tuple; raises BadArgument where code that ran meanwhile has made the list shorter.
nb::object item_at(nb::handle sequence, std::size_t i, const std::string& name);

/// The integers of a list or tuple of three, one for each axis; raises BadArgument.
template <class Integer>
std::array<Integer, 3> axes_of(nb::handle value, const std::string& name) {
  const bool list = PyList_Check(value.ptr()) != 0 || PyTuple_Check(value.ptr()) != 0;
  if (!list || PyObject_Size(value.ptr()) != 3)
    raise_bad(name + " is " + shown(value) + ": must be an integer on each of the axes (tp, pp, cp)");
  std::array<Integer, 3> axes;
  for (std::size_t i = 0; i < 3; ++i) axes[i] = integer_of<Integer>(item_at(value, i, name), name);
  return axes;
}

/// A dict of one's own with the same items.
nb::dict own_copy(nb::handle dict);

}  // namespace kvonce::python
