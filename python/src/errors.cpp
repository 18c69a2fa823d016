// SPDX-License-Identifier: Apache-2.0
#include "python/src/errors.hpp"

#include <cmath>
#include <cstdio>

namespace kvonce::python {
namespace {

// Of the module kvonce._errors, for the life of the process.
struct Classes {
  PyObject* error = nullptr;
  PyObject* bad_argument = nullptr;
  PyObject* store_lost = nullptr;
  PyObject* deadline = nullptr;
  PyObject* closed = nullptr;
  PyObject* forked = nullptr;
} g_classes;

[[noreturn]] void raise_class(PyObject* type, Reason reason, const std::string& text) {
  const nb::object value =
      nb::handle(type)(nb::str(to_string(reason).data(), to_string(reason).size()), nb::str(text.data(), text.size()));
  PyErr_SetObject(type, value.ptr());
  throw nb::python_error();
}

PyObject* class_of(Reason reason) {
  switch (reason) {
    case Reason::closed: return g_classes.closed;
    case Reason::deadline: return g_classes.deadline;
    case Reason::store_lost: return g_classes.store_lost;
    case Reason::bad_argument:
    case Reason::too_many:
    case Reason::row_out_of_range:
    case Reason::wrong_size:
    case Reason::unknown_pool: return g_classes.bad_argument;
    default: return g_classes.error;
  }
}

}  // namespace

void raise(const Error& error) { raise_class(class_of(error.reason), error.reason, error.text); }
void raise_bad(const std::string& text) { raise_class(g_classes.bad_argument, Reason::bad_argument, text); }
void raise_closed(const char* what) { raise_class(g_classes.closed, Reason::closed, std::string(what) + " is closed"); }
void raise_forked() {
  raise_class(g_classes.forked, Reason::closed,
              "this object was made before a fork, and its threads are not in the child: start a Runtime of its own here");
}

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

std::chrono::milliseconds milliseconds(double seconds, const char* what, const char* allowed) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > kMostSeconds)
    raise_bad(std::string(what) + " is " + number_text(seconds) + ": must be seconds, " + allowed);
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1e3)));
}

void bind_errors(nb::module_& module) {
  const nb::module_ errors = nb::module_::import_("kvonce._errors");
  const auto take = [&](const char* name) { return nb::object(errors.attr(name)).release().ptr(); };
  g_classes = {take("Error"), take("BadArgument"), take("StoreLost"), take("Deadline"), take("Closed"), take("Forked")};

  nb::enum_<Verdict> verdicts(module, "Verdict", nb::is_arithmetic(), "What became of one item of a put.");
  for (std::size_t v = 0; v < kVerdictCount; ++v)
    verdicts.value(to_string(static_cast<Verdict>(v)).data(), static_cast<Verdict>(v));
  nb::enum_<Reason> reasons(module, "Reason", nb::is_arithmetic(), "Why; one list for puts, lookups, loads and errors.");
  nb::list names;
  for (std::size_t r = 0; r < kReasonCount; ++r) {
    const std::string_view name = to_string(static_cast<Reason>(r));
    reasons.value(name.data(), static_cast<Reason>(r));
    names.append(nb::str(name.data(), name.size()));
  }
  module.attr("REASONS") = nb::tuple(names);
}

}  // namespace kvonce::python
