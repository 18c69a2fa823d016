// SPDX-License-Identifier: Apache-2.0
#include "python/src/arrays.hpp"

#include <cstring>
#include <optional>
#include <string_view>

#include <nanobind/ndarray.h>

#include "python/src/errors.hpp"
#include "python/src/process.hpp"

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
  char kind = '?';  // 'i' signed, 'u' unsigned, '?' other or not known
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
  view->strides.assign(got.strides, got.strides + got.ndim);
  view->kind = kind_of_format(got.format);
  view->keeper = std::move(keeper);
  return true;
}

std::vector<std::int64_t> integers(const nb::object& sequence) {
  std::vector<std::int64_t> values;
  for (const nb::handle value : sequence) values.push_back(nb::cast<std::int64_t>(value));
  return values;
}

/// A torch tensor, by what it has: works for every dtype, those that DLPack and the buffer protocol have no name for too.
bool view_tensor(nb::handle object, View* view) {
  if (!nb::hasattr(object, "data_ptr") || !nb::hasattr(object, "element_size") || !nb::hasattr(object, "stride")) return false;
  view->data = reinterpret_cast<char*>(nb::cast<std::uint64_t>(object.attr("data_ptr")()));
  view->item_bytes = nb::cast<std::int64_t>(object.attr("element_size")());
  view->shape = integers(nb::object(object.attr("shape")));
  view->strides = integers(nb::object(object.attr("stride")()));
  for (std::int64_t& stride : view->strides) stride *= view->item_bytes;
  view->host = nb::cast<std::string>(nb::str(object.attr("device").attr("type"))) == "cpu";
  const nb::object dtype = object.attr("dtype");
  const std::string type =
      nb::cast<std::string>(nb::str(nb::handle(dtype)));  // from an attribute, nb::str takes the object as it is
  if (type.find("uint") != std::string::npos) view->kind = 'u';
  else if (type.find("int") != std::string::npos && type.find("q") == std::string::npos) view->kind = 'i';
  view->keeper = std::make_unique<ObjectKeeper>(object);
  return true;
}

bool view_dlpack(nb::handle object, View* view) {
  nb::ndarray<> array;
  if (!nb::try_cast(object, array)) {
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
  view->keeper = std::make_unique<DlpackKeeper>(std::move(array));
  return true;
}

bool view_array(nb::handle object, bool writable, View* view) {
  return view_buffer(object, writable, view) || view_tensor(object, view) || view_dlpack(object, view);
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

std::int64_t integer_of(nb::handle item, const std::string& what) {
  const nb::object index = nb::steal(PyNumber_Index(item.ptr()));
  long long value = -1;
  if (index.is_valid()) value = PyLong_AsLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise_bad(what + " holds a " + kind_name(item) + ": must be integers of 64 bits");
  }
  return value;
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
      const std::int64_t index = at(static_cast<std::int64_t>(p * unit));
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
    const auto start = nb::cast<std::int64_t>(indices.attr("start"));
    const auto step = nb::cast<std::int64_t>(indices.attr("step"));
    reader.check_count(static_cast<std::int64_t>(nb::len(indices)));
    reader.read([&](std::int64_t i) { return start + i * step; });
    return std::move(reader.rows);
  }
  if (PyList_Check(indices.ptr())) {
    reader.check_count(PyList_Size(indices.ptr()));
    reader.read([&](std::int64_t i) { return integer_of(PyList_GetItem(indices.ptr(), i), what); });
    return std::move(reader.rows);
  }
  if (PyTuple_Check(indices.ptr())) {
    reader.check_count(PyTuple_Size(indices.ptr()));
    reader.read([&](std::int64_t i) { return integer_of(PyTuple_GetItem(indices.ptr(), i), what); });
    return std::move(reader.rows);
  }
  View view;
  if (!view_array(indices, false, &view))
    raise_bad(what + " is a " + kind_name(indices) + ": must be an integer array, a range or a list");
  if (!view.host) raise_bad(what + " lies on a device: row indices must be in host memory");
  if (view.kind == '?' || view.item_bytes > 8) raise_bad(what + " is no array of integers");
  if (view.shape.size() != 1) raise_bad(what + " has " + std::to_string(view.shape.size()) + " axes: must have one");
  reader.check_count(view.shape[0]);
  const std::int64_t stride = view.strides[0];
  const bool is_signed = view.kind == 'i';
  reader.read([&](std::int64_t i) { return integer_at(view.data + i * stride, view.item_bytes, is_signed); });
  return std::move(reader.rows);
}

PageHash read_page(nb::handle page) {
  if (PyUnicode_Check(page.ptr()) != 0) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(page.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    const auto found = PageHash::from_hex({text, static_cast<std::size_t>(size)});
    if (!found) raise_bad("a page hash of " + std::to_string(size) + " characters: must be 64 hexadecimal digits, or 32 bytes");
    return *found;
  }
  View view;
  if (!view_array(page, false, &view))
    raise_bad("a page hash is a " + kind_name(page) + ": must be 32 bytes, or 64 hexadecimal digits");
  if (!view.host || view.shape.size() != 1 || view.shape[0] != 32 || view.strides[0] != 1 || view.item_bytes != 1)
    raise_bad("a page hash of another size: must be 32 bytes, or 64 hexadecimal digits");
  return page_of_bytes(view.data);
}

std::vector<PageHash> read_pages(nb::handle pages) {
  std::vector<PageHash> hashes;
  const auto each = [&](Py_ssize_t count, auto at) {
    hashes.reserve(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      const nb::handle item = at(pages.ptr(), i);
      // The common case without a buffer's bookkeeping.
      if (PyBytes_Check(item.ptr()) && PyBytes_Size(item.ptr()) == 32)
        hashes.push_back(page_of_bytes(PyBytes_AsString(item.ptr())));
      else hashes.push_back(read_page(item));
    }
  };
  if (PyList_Check(pages.ptr())) {
    each(PyList_Size(pages.ptr()), [](PyObject* list, Py_ssize_t i) { return PyList_GetItem(list, i); });
    return hashes;
  }
  if (PyTuple_Check(pages.ptr())) {
    each(PyTuple_Size(pages.ptr()), [](PyObject* tuple, Py_ssize_t i) { return PyTuple_GetItem(tuple, i); });
    return hashes;
  }
  View view;
  if (PyUnicode_Check(pages.ptr()) != 0 || !view_array(pages, false, &view))
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
    raise_bad("pages are " + (bytes < 0 ? "an array of another shape" : std::to_string(bytes) + " bytes") +
              ": must be n * 32 bytes or an (n, 32) uint8 array");
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
  if (!view_array(layer, true, &view)) {
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
