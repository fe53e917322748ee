// Any bytes as NumPy arrays, .npy or .npz, are read to the last element or refused.

#include "data/io/arrays.h"
#include "tests/fuzz/input.h"

using namespace longspan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("numpy");
  prepare();
  file.set(text_of(data, size));
  std::vector<NumpyArray> all;
  const bool bad = refuses([&] { all = read_numpy(file.path); });
  double sum = 0;
  for (const NumpyArray& array : all) {
    check(array.numel() * array.width == static_cast<int64_t>(array.data.bytes.size()));
    for (int64_t i = 0; i < array.numel(); ++i) sum += array[i];
    check(!array.text().empty());
  }
  constexpr std::string_view names[] = {"x", "y"};
  refuses([&] { all = read_numpy(file.path, names); });
  check(!bad || sum == 0);  // uses the sum, so that every element is read
  return 0;
}
