#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/ranks/communicator.h"
#include "core/tensor.h"

namespace longspan {

/// Appends values to a string of bytes, which another process of the same program reads with an
/// Unpacker, in the same order.
class Packer {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  void put(const Shape& shape) {
    put(shape.rank());
    for (const int64_t size : shape) put(size);
  }
  /// A row-major tensor on the host.
  void put(const Tensor& x) {
    require(x.contiguous(), "ranks", "a tensor that is packed is not contiguous");
    put(x.dtype());
    put(x.shape());
    bytes_.append(static_cast<const char*>(x.view().data), static_cast<size_t>(x.nbytes()));
  }
  std::string taken() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Takes them out again. Throws ValueError if a value goes beyond the bytes, which must stay.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T x;
    std::memcpy(&x, take(sizeof x).data(), sizeof x);
    return x;
  }
  std::string text() { return std::string(take(value<size_t>())); }
  Shape shape() {
    std::vector<int64_t> sizes(static_cast<size_t>(value<int>()));
    for (int64_t& size : sizes) size = value<int64_t>();
    return Shape(sizes);
  }
  Tensor tensor() {
    const auto dtype = value<DType>();
    Tensor x = Tensor::empty(shape(), dtype, {});
    const std::string_view data = take(static_cast<size_t>(x.nbytes()));
    if (!data.empty()) std::memcpy(x.mut().data, data.data(), data.size());
    return x;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view take(size_t count) {
    require(count <= bytes_.size(), "ranks", "a message is cut off");
    const std::string_view part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }
  std::string_view bytes_;
};

/// Returns the sum of what all ranks have, added up in their order.
inline double sum_over(Communicator& ranks, double mine, const std::string& what) {
  Packer p;
  p.put(mine);
  double sum = 0;
  for (const std::string& share : ranks.gather(p.taken(), what)) {
    sum += Unpacker(share).value<double>();
  }
  return sum;
}

}  // namespace longspan
