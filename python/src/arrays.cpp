// SPDX-License-Identifier: Apache-2.0
#include "python/src/arrays.hpp"

#include <bit>
#include <cstring>
#include <optional>
#include <string_view>

#include <nanobind/ndarray.h>

#include "python/src/errors.hpp"
#include "python/src/process.hpp"
#include "python/src/values.hpp"

namespace kvonce::python {
namespace {

class BufferKeeper : public Keeper {
 public:
  ~BufferKeeper() override { PyBuffer_Release(&view); }
  Py_buffer view{};
};

class ObjectKeeper : public Keeper {
 public:
  explicit ObjectKeeper(nb::handle object) : object_(nb::borrow(object)) {}

 private:
  nb::object object_;
};

class DlpackKeeper : public Keeper {
 public:
  explicit DlpackKeeper(nb::ndarray<> array) : array_(std::move(array)) {}

 private:
  nb::ndarray<> array_;
};

/// Shape and strides of any array; strides in bytes.
struct View {
  char* data = nullptr;
  std::int64_t item_bytes = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  bool host = true;
  char kind = '?';   // 'i' signed, 'u' unsigned, '?' other or not known
  std::string type;  // of an item, as the array itself names it
  std::unique_ptr<Keeper> keeper;
};

std::string kind_name(nb::handle object) { return nb::cast<std::string>(nb::str(nb::handle(object.type()).attr("__name__"))); }

char kind_of_format(const char* format) {
  if (format == nullptr) return 'u';
  if (std::strchr("@=<", *format) != nullptr && *format != '\0') ++format;
  if (format[0] == '\0' || format[1] != '\0') return '?';
  if (std::strchr("bhilqn", format[0]) != nullptr) return 'i';
  return std::strchr("BHILQN", format[0]) != nullptr ? 'u' : '?';
}

/// The buffer protocol; false, without an error set, where the object does not offer what is asked.
bool view_buffer(nb::handle object, bool writable, View* view) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  auto keeper = std::make_unique<BufferKeeper>();
  if (PyObject_GetBuffer(object.ptr(), &keeper->view, writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    keeper->view.obj = nullptr;
    return false;
  }
  const Py_buffer& got = keeper->view;
  view->data = static_cast<char*>(got.buf);
  view->item_bytes = got.itemsize;
  view->shape.assign(got.shape, got.shape + got.ndim);
  if (got.strides != nullptr) {
    view->strides.assign(got.strides, got.strides + got.ndim);
  } else {
    // A ctypes array tells none, though it is asked: its items lie one after the other.
    view->strides.resize(view->shape.size());
    std::int64_t bytes = got.itemsize;
    for (std::size_t d = view->shape.size(); d-- > 0; bytes *= view->shape[d]) view->strides[d] = bytes;
  }
  view->kind = kind_of_format(got.format);
  view->type = got.format == nullptr ? "B" : got.format;
  view->keeper = std::move(keeper);
  return true;
}

std::vector<std::int64_t> integers(const nb::object& sequence, const std::string& name) {
  std::vector<std::int64_t> values;
  for (const nb::handle value : sequence) values.push_back(integer_of<std::int64_t>(value, name));
  return values;
}

/// A torch tensor, by what it has: works for every dtype, those that DLPack and the buffer protocol have no name for too.
bool view_tensor(nb::handle object, View* view) {
  if (!nb::hasattr(object, "data_ptr") || !nb::hasattr(object, "element_size") || !nb::hasattr(object, "stride")) return false;
  view->data = reinterpret_cast<char*>(integer_of<std::uintptr_t>(object.attr("data_ptr")(), "a tensor's data_ptr"));
  view->item_bytes = integer_of<std::int64_t>(object.attr("element_size")(), "a tensor's element_size");
  view->shape = integers(nb::object(object.attr("shape")), "a tensor's shape");
  view->strides = integers(nb::object(object.attr("stride")()), "a tensor's stride");
  if (view->shape.size() != view->strides.size()) raise_bad("a tensor has not as many strides as axes");
  for (std::int64_t& stride : view->strides) stride *= view->item_bytes;
  view->host = text_of(object.attr("device").attr("type"), "a tensor's device type") == "cpu";
  const nb::object dtype = object.attr("dtype");
  // From an attribute, nb::str takes the object as it is.
  const std::string type = text_of(nb::str(nb::handle(dtype)), "a tensor's dtype");
  if (type.find("uint") != std::string::npos) view->kind = 'u';
  else if (type.find("int") != std::string::npos && type.find("q") == std::string::npos) view->kind = 'i';
  view->type = type;
  view->keeper = std::make_unique<ObjectKeeper>(object);
  return true;
}

bool view_dlpack(nb::handle object, View* view) {
  nb::ndarray<> array;
  // None is taken as an array that is not there.
  if (!nb::try_cast(object, array) || !array.is_valid()) {
    PyErr_Clear();
    return false;
  }
  view->data = static_cast<char*>(array.data());
  view->item_bytes = static_cast<std::int64_t>(array.itemsize());
  for (std::size_t d = 0; d < array.ndim(); ++d) {
    view->shape.push_back(static_cast<std::int64_t>(array.shape(d)));
    view->strides.push_back(array.stride(d) * view->item_bytes);
  }
  view->host = array.device_type() == nb::device::cpu::value;
  const auto code = static_cast<nb::dlpack::dtype_code>(array.dtype().code);
  view->kind = code == nb::dlpack::dtype_code::Int ? 'i' : code == nb::dlpack::dtype_code::UInt ? 'u' : '?';
  view->type = "of DLPack code " + std::to_string(array.dtype().code) + " and " + std::to_string(array.dtype().bits) + " bits";
  view->keeper = std::make_unique<DlpackKeeper>(std::move(array));
  return true;
}

/// `name` names the argument in errors.
bool view_array(nb::handle object, bool writable, View* view, const std::string& name) {
  if (view_buffer(object, writable, view)) return true;
  try {
    if (view_tensor(object, view)) return true;
  } catch (nb::python_error& error) {
    // A sparse tensor, or one without memory, has no pointer to give.
    if (!error.matches(PyExc_Exception)) throw;
    raise_bad(name + " is a " + kind_name(object) + " whose memory cannot be read: " + shown(error.value()));
  }
  return view_dlpack(object, view);
}

/// Bytes of the axes behind the first; nothing where they are not one contiguous piece.
std::optional<std::uint64_t> row_bytes(const View& view) {
  std::int64_t bytes = view.item_bytes;
  for (std::size_t d = view.shape.size(); d-- > 1;) {
    if (view.shape[d] != 1 && view.strides[d] != bytes) return {};
    bytes *= view.shape[d];
  }
  return static_cast<std::uint64_t>(bytes);
}

std::int64_t integer_at(const char* at, std::int64_t bytes, bool is_signed) {
  const auto as = [&]<class T>(T) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return static_cast<std::int64_t>(value);
  };
  switch (bytes) {
    case 1: return is_signed ? as(std::int8_t{}) : as(std::uint8_t{});
    case 2: return is_signed ? as(std::int16_t{}) : as(std::uint16_t{});
    case 4: return is_signed ? as(std::int32_t{}) : as(std::uint32_t{});
    default: return is_signed ? as(std::int64_t{}) : as(std::uint64_t{});
  }
}

struct RowReader {
  std::size_t pages;
  std::uint32_t unit;
  const std::string& what;
  std::vector<std::int64_t> rows;

  void check_count(std::int64_t count) const {
    const auto needed = static_cast<std::int64_t>(pages * unit);
    if (count == needed) return;
    raise_bad(what + " has " + std::to_string(count) + " entries: must be " + std::to_string(needed) + ", " +
              std::to_string(unit) + " for each of " + std::to_string(pages) + " pages");
  }
  template <class At>
  void read(const At& at) {
    rows.resize(pages);
    for (std::size_t p = 0; p < pages; ++p) {
      const std::int64_t index = at(p * unit);
      if (index < 0) {
        rows[p] = -1;
        continue;
      }
      if (index % unit != 0)
        raise_bad(what + ": entry " + std::to_string(p * unit) + " is " + std::to_string(index) +
                  ": the first of a page must be a multiple of the pool's unit, " + std::to_string(unit));
      rows[p] = index / unit;
    }
  }
};

PageHash page_of_bytes(const char* bytes) { return *PageHash::from_bytes({bytes, 32}); }

}  // namespace

std::vector<std::int64_t> read_rows(nb::handle indices, std::size_t pages, std::uint32_t unit, const std::string& what) {
  RowReader reader{pages, unit, what, {}};
  if (Py_TYPE(indices.ptr()) == &PyRange_Type) {
    const Py_ssize_t count = PyObject_Size(indices.ptr());
    if (count < 0) {
      forget_exception();
      raise_bad(what + " is " + shown(indices) + ": must have " + std::to_string(unit) + " entries for each page");
    }
    reader.check_count(count);
    const auto start = integer_of<std::int64_t>(indices.attr("start"), what + ": the start");
    const auto step = integer_of<std::int64_t>(indices.attr("step"), what + ": the step");
    // All entries lie between the first and the last one.
    if (count > 0) integer_of<std::int64_t>(indices.attr("__getitem__")(count - 1), what + ": the last entry");
    reader.read([&](std::uint64_t i) {
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(start) + i * static_cast<std::uint64_t>(step));
    });
    return std::move(reader.rows);
  }
  if (PyList_Check(indices.ptr()) || PyTuple_Check(indices.ptr())) {
    reader.check_count(PyObject_Size(indices.ptr()));
    reader.read([&](std::size_t i) {
      const nb::object item = item_at(indices, i, what);
      std::int64_t index = 0;
      return read_integer(item, &index) ? index : integer_of<std::int64_t>(item, what + ": entry " + std::to_string(i));
    });
    return std::move(reader.rows);
  }
  View view;
  if (!view_array(indices, false, &view, what))
    raise_bad(what + " is a " + kind_name(indices) + ": must be an integer array, a range or a list");
  if (!view.host) raise_bad(what + " lies on a device: row indices must be in host memory");
  if (view.kind == '?' || view.item_bytes > 8 || !std::has_single_bit(static_cast<std::uint64_t>(view.item_bytes)))
    raise_bad(what + " is no array of integers of at most 8 bytes in this machine's byte order: its items are '" + view.type +
              "'");
  if (view.shape.size() != 1) raise_bad(what + " has " + std::to_string(view.shape.size()) + " axes: must have one");
  reader.check_count(view.shape[0]);
  const std::int64_t stride = view.strides[0];
  const bool is_signed = view.kind == 'i';
  reader.read([&](std::size_t i) {
    const std::int64_t index = integer_at(view.data + static_cast<std::int64_t>(i) * stride, view.item_bytes, is_signed);
    if (index < 0 && !is_signed)
      raise_bad(what + ": entry " + std::to_string(i) + " is " + std::to_string(static_cast<std::uint64_t>(index)) +
                ": must be at most " + std::to_string(std::numeric_limits<std::int64_t>::max()));
    return index;
  });
  return std::move(reader.rows);
}

PageHash read_page(nb::handle page, const std::string& name) {
  static const std::string kAllowed = ": must be 32 bytes, or 64 hexadecimal digits";
  if (PyUnicode_Check(page.ptr()) != 0) {
    const std::string text = text_of(page, name);
    const auto found = PageHash::from_hex(text);
    if (!found) raise_bad(name + " is " + shown(page) + ", a text of " + std::to_string(text.size()) + " bytes" + kAllowed);
    return *found;
  }
  View view;
  if (!view_array(page, false, &view, name)) raise_bad(name + " is a " + kind_name(page) + kAllowed);
  if (!view.host) raise_bad(name + " lies on a device: must be in host memory");
  if (view.item_bytes != 1) raise_bad(name + " has items of " + std::to_string(view.item_bytes) + " bytes" + kAllowed);
  if (view.shape.size() != 1) raise_bad(name + " is an array of " + std::to_string(view.shape.size()) + " axes" + kAllowed);
  if (view.shape[0] != 32) raise_bad(name + " has " + std::to_string(view.shape[0]) + " bytes" + kAllowed);
  if (view.strides[0] != 1) raise_bad(name + " has bytes that lie apart" + kAllowed);
  return page_of_bytes(view.data);
}

std::vector<PageHash> read_pages(nb::handle pages) {
  std::vector<PageHash> hashes;
  if (PyList_Check(pages.ptr()) || PyTuple_Check(pages.ptr())) {
    const auto count = static_cast<std::size_t>(PyObject_Size(pages.ptr()));
    hashes.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const nb::object item = item_at(pages, i, "pages");
      // The common case without a buffer's bookkeeping.
      if (PyBytes_Check(item.ptr()) && PyBytes_Size(item.ptr()) == 32)
        hashes.push_back(page_of_bytes(PyBytes_AsString(item.ptr())));
      else hashes.push_back(read_page(item, "pages[" + std::to_string(i) + "]"));
    }
    return hashes;
  }
  View view;
  if (PyUnicode_Check(pages.ptr()) != 0 || !view_array(pages, false, &view, "pages"))
    raise_bad("pages are a " + kind_name(pages) +
              ": must be bytes of n * 32, an (n, 32) uint8 array, or a list of 32-byte hashes");
  const bool flat = view.shape.size() == 1 && view.strides[0] == view.item_bytes;
  const bool table = view.shape.size() == 2 && view.item_bytes == 1 && view.shape[1] == 32 && view.strides[1] == 1;
  if (!view.host) raise_bad("pages lie on a device: must be in host memory");
  if (table) {
    for (std::int64_t p = 0; p < view.shape[0]; ++p) hashes.push_back(page_of_bytes(view.data + p * view.strides[0]));
    return hashes;
  }
  const std::int64_t bytes = flat ? view.shape[0] * view.item_bytes : -1;
  if (bytes < 0 || view.item_bytes != 1 || bytes % 32 != 0)
    raise_bad("pages are " +
              (bytes < 0              ? "an array of another shape"
               : view.item_bytes != 1 ? "an array of items of " + std::to_string(view.item_bytes) + " bytes"
                                      : std::to_string(bytes) + " bytes") +
              ": must be n * 32 bytes, or an array of single bytes (uint8) of shape (n, 32)");
  for (std::int64_t at = 0; at < bytes; at += 32) hashes.push_back(page_of_bytes(view.data + at));
  return hashes;
}

Memory read_layer(nb::handle layer, bool hip, const std::string& what) {
  Memory memory;
  if (Layer given; nb::try_cast(layer, given)) {
    memory.buffer = {reinterpret_cast<void*>(given.ptr), given.row_stride, given.row_bytes};
    memory.rows = given.rows;
    return memory;
  }
  View view;
  if (!view_array(layer, true, &view, what)) {
    View read_only;
    if (view_buffer(layer, false, &read_only)) raise_bad(what + " is read-only: loads write to it");
    raise_bad(what + " is a " + kind_name(layer) + ": must be an array (buffer protocol, DLPack, torch tensor) or kvonce.Layer");
  }
  if (view.host == hip)
    raise_bad(what + (view.host ? " lies in host memory: the pool is declared as memory='hip'"
                                : " lies on a device: the pool is declared as memory='host'"));
  if (view.shape.empty()) raise_bad(what + " has no axis: rows lie along the first one");
  const auto bytes = row_bytes(view);
  if (!bytes) raise_bad(what + ": one row is not contiguous; only the first axis may have a stride of its own");
  std::int64_t stride = view.strides[0];
  if (view.shape[0] <= 1) stride = static_cast<std::int64_t>(*bytes);
  if (*bytes == 0 || stride < static_cast<std::int64_t>(*bytes))
    raise_bad(what + ": rows of " + std::to_string(*bytes) + " bytes that lie " + std::to_string(stride) +
              " bytes apart: they must not overlap or run backwards");
  memory.buffer = {view.data, static_cast<std::uint64_t>(stride), *bytes};
  memory.rows = static_cast<std::uint64_t>(view.shape[0]);
  memory.keeper = std::move(view.keeper);
  return memory;
}

}  // namespace kvonce::python
