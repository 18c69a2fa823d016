// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/byte_source.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include <lzma.h>
#include <unistd.h>

namespace kvonce::workload {
namespace {

constexpr std::size_t kCompressedBufferBytes = 64 * 1024;
constexpr std::uint64_t kDecoderMemoryBytesMax = std::uint64_t{1} << 30;  // more than any preset of xz needs

class PlainSource final : public ByteSource {
public:
  PlainSource(std::FILE* file, std::string name, bool owned) : file_(file), name_(std::move(name)), owned_(owned) {}
  ~PlainSource() override {
    if (owned_) std::fclose(file_);
  }
  std::size_t read(char* out, std::size_t size) override {
    // Not fread: that waits until `size` is full, and a request on a pipe should be played when it comes.
    const ::ssize_t got = ::read(fileno(file_), out, size);
    if (got >= 0) return static_cast<std::size_t>(got);
    error_ = name_ + ": cannot be read: " + std::strerror(errno);
    return 0;
  }
  const std::string& error() const override { return error_; }

private:
  std::FILE* file_;
  std::string name_;
  bool owned_;
  std::string error_;
};

std::string_view xz_reason(lzma_ret code) {
  switch (code) {
    case LZMA_FORMAT_ERROR: return "it is not an xz file";
    case LZMA_OPTIONS_ERROR: return "it uses xz options that are not supported";
    case LZMA_DATA_ERROR: return "its xz data is corrupt";
    case LZMA_BUF_ERROR: return "its xz data ends early";
    case LZMA_MEM_ERROR:
    case LZMA_MEMLIMIT_ERROR: return "its xz data needs too much memory";
    default: return "the xz decoder failed";
  }
}

class XzSource final : public ByteSource {
public:
  XzSource(std::unique_ptr<ByteSource> compressed, std::string name)
      : compressed_(std::move(compressed)), name_(std::move(name)), input_(kCompressedBufferBytes) {
    const lzma_ret code = lzma_stream_decoder(&stream_, kDecoderMemoryBytesMax, LZMA_CONCATENATED);
    if (code != LZMA_OK) fail(code);
  }
  ~XzSource() override { lzma_end(&stream_); }

  std::size_t read(char* out, std::size_t size) override {
    stream_.next_out = reinterpret_cast<std::uint8_t*>(out);
    stream_.avail_out = size;
    while (!done_ && stream_.avail_out == size) {
      if (stream_.avail_in == 0 && !input_ended_) {
        const std::size_t got = compressed_->read(input_.data(), input_.size());
        if (got == 0) {
          input_ended_ = true;
          if (!compressed_->error().empty()) {
            error_ = compressed_->error();
            done_ = true;
            break;
          }
        }
        stream_.next_in = reinterpret_cast<const std::uint8_t*>(input_.data());
        stream_.avail_in = got;
      }
      const lzma_ret code = lzma_code(&stream_, input_ended_ ? LZMA_FINISH : LZMA_RUN);
      if (code == LZMA_STREAM_END) {
        done_ = true;
      } else if (code != LZMA_OK) {
        fail(code);
      }
    }
    return size - stream_.avail_out;
  }
  const std::string& error() const override { return error_; }

private:
  void fail(lzma_ret code) {
    error_ = name_ + ": " + std::string(xz_reason(code));
    done_ = true;
  }

  std::unique_ptr<ByteSource> compressed_;
  std::string name_;
  std::vector<char> input_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool input_ended_ = false;
  bool done_ = false;
  std::string error_;
};

}  // namespace

OpenedBytes open_bytes(std::string_view path) {
  if (path == "-") return {std::make_unique<PlainSource>(stdin, "standard input", false), {}};
  const std::string name(path);
  std::FILE* file = name.empty() ? nullptr : std::fopen(name.c_str(), "rb");
  if (name.empty()) return {nullptr, "the trace's path is empty; allowed are a path, or - for standard input"};
  if (file == nullptr) return {nullptr, name + ": cannot be opened: " + std::strerror(errno)};
  std::unique_ptr<ByteSource> source = std::make_unique<PlainSource>(file, name, true);
  if (path.ends_with(".xz")) source = std::make_unique<XzSource>(std::move(source), name);
  return {std::move(source), {}};
}

}  // namespace kvonce::workload
