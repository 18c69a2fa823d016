// SPDX-License-Identifier: Apache-2.0
#include "python/src/values.hpp"

namespace kvonce::python {
namespace {

constexpr std::size_t kShownMax = 160;

/// The int behind a value; not valid, and no error set, where it is none.
nb::object index_of(nb::handle value) {
  nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) forget_exception();
  return index;
}

}  // namespace

std::string shown(nb::handle value) {
  const nb::object text = nb::steal(PyObject_ASCII(value.ptr()));
  const char* const ascii = text.is_valid() ? PyUnicode_AsUTF8AndSize(text.ptr(), nullptr) : nullptr;
  if (ascii == nullptr) {
    PyErr_Clear();
    return "one that cannot be shown";
  }
  std::string all(ascii);
  if (all.size() > kShownMax) all.replace(kShownMax, std::string::npos, "...");
  return all;
}

void forget_exception() {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw nb::python_error();
  PyErr_Clear();
}

bool read_integer(nb::handle value, std::int64_t* integer) {
  const nb::object index = index_of(value);
  if (!index.is_valid()) return false;
  *integer = PyLong_AsLongLong(index.ptr());
  if (PyErr_Occurred() == nullptr) return true;
  forget_exception();
  return false;
}

bool read_integer(nb::handle value, std::uint64_t* integer) {
  const nb::object index = index_of(value);
  if (!index.is_valid()) return false;
  *integer = PyLong_AsUnsignedLongLong(index.ptr());
  if (PyErr_Occurred() == nullptr) return true;
  forget_exception();
  return false;
}

void raise_not_integer(nb::handle value, const std::string& name, const std::string& least, const std::string& most) {
  raise_bad(name + " is " + shown(value) + ": must be an integer, " + least + " to " + most);
}

std::string text_of(nb::handle value, const std::string& name) {
  if (PyUnicode_Check(value.ptr()) == 0) raise_bad(name + " is " + shown(value) + ": must be a text");
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) {
    forget_exception();
    raise_bad(name + " is " + shown(value) + ": must be a text that UTF-8 can hold, without lone surrogates");
  }
  return {text, static_cast<std::size_t>(size)};
}

std::chrono::milliseconds seconds_of(nb::handle value, const char* name, const char* allowed) {
  double seconds = 0;
  if (PyBool_Check(value.ptr()) || !nb::try_cast(value, seconds)) {
    PyErr_Clear();
    raise_bad(std::string(name) + " is " + shown(value) + ": must be seconds as a number, " + allowed);
  }
  return milliseconds(seconds, name, allowed);
}

nb::dict dict_of(nb::handle value, const std::string& name, const std::string& allowed) {
  if (PyDict_Check(value.ptr()) == 0) raise_bad(name + " is " + shown(value) + ": must be " + allowed);
  return nb::borrow<nb::dict>(value);
}

nb::object item_at(nb::handle sequence, std::size_t i, const std::string& name) {
  const auto at = static_cast<Py_ssize_t>(i);
  PyObject* const item = PyList_Check(sequence.ptr()) ? PyList_GetItem(sequence.ptr(), at) : PyTuple_GetItem(sequence.ptr(), at);
  if (item == nullptr) {
    forget_exception();
    raise_bad(name + " became shorter while they were read: must stay as they are during the call");
  }
  return nb::borrow(item);
}

nb::dict own_copy(nb::handle dict) {
  PyObject* const copy = PyDict_Copy(dict.ptr());
  if (copy == nullptr) throw nb::python_error();
  return nb::steal<nb::dict>(copy);
}

}  // namespace kvonce::python
