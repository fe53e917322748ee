// Any bytes as a tensor file are read, or refused with an IoError. A readable file is written and
// read again.

#include "tests/fuzz/input.h"
#include "train/state.h"

using namespace longspan;

namespace {

std::string bytes_of(const TensorList& tensors) {
  std::string all;
  for (const NamedTensor& t : tensors) {
    all += t.name;
    all.append(static_cast<const char*>(t.tensor.view().data),
               static_cast<size_t>(t.tensor.nbytes()));
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile input("input");
  static const std::string output = "/tmp/longspan-fuzz-" + std::to_string(getpid());
  prepare();
  input.set(text_of(data, size));
  for (const Checksums checksums : {Checksums::optional, Checksums::required}) {
    try {
      read_tensor_header(input.path, checksums);
    } catch (const IoError&) {
    }
  }
  TensorList tensors;
  try {
    tensors = read_tensors(input.path);
  } catch (const IoError&) {
    return 0;
  }
  try {
    write_tensors(output, tensors);
  } catch (const ValueError&) {  // names that write_tensors() refuses
    return 0;
  }
  const TensorList again = read_tensors(output);
  unlink(output.c_str());
  if (again.size() != tensors.size()) std::abort();
  for (const NamedTensor& t : tensors) {
    for (const NamedTensor& other : again) {
      if (other.name == t.name &&
          (other.tensor.shape() != t.tensor.shape() || bytes_of({other}) != bytes_of({t}))) {
        std::abort();
      }
    }
  }
  return 0;
}
