#include "train/state.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "core/deferred.h"
#include "core/error.h"
#include "core/kernels/gradient.h"
#include "data/io/files.h"
#include "data/io/json_members.h"
#include "ops/copy.h"

namespace longspan {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor files are little endian");

constexpr int64_t max_header_bytes = 100'000'000;
constexpr int64_t piece = 4 << 20;  // bytes read or written at a time
constexpr std::string_view header_key = "\"xxh3\":\"";
constexpr std::string_view tensor_key = "xxh3/";
constexpr std::string_view no_checksum = "0000000000000000";

struct Format {
  DType dtype;
  std::string_view name;
};
constexpr Format formats[] = {{DType::f64, "F64"},   {DType::f32, "F32"}, {DType::f16, "F16"},
                              {DType::bf16, "BF16"}, {DType::i64, "I64"}, {DType::i32, "I32"},
                              {DType::u8, "U8"}};

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

/// XXH3 of bytes that are added piece by piece.
class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
  void add(const void* bytes, int64_t count) {
    XXH3_64bits_update(state_.get(), bytes, static_cast<size_t>(count));
  }
  std::string digest() const { return hex(XXH3_64bits_digest(state_.get())); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

std::string hash_of(std::string_view text) { return hex(XXH3_64bits(text.data(), text.size())); }

template <class... Args>
[[noreturn]] void damaged(const std::string& path, fmt::format_string<Args...> format,
                          Args&&... args) {
  fail<IoError>("state", "{} is damaged: {}", path,
                fmt::format(format, std::forward<Args>(args)...));
}

/// Compares the header's own checksum, which was computed with zeros in its place.
void check_header(std::string_view header, const std::string& path, Checksums checksums) {
  const size_t at = header.find(header_key);
  if (at == std::string_view::npos) {
    if (checksums == Checksums::required) damaged(path, "the header has no checksum");
    return;
  }
  const size_t begin = at + header_key.size();
  if (header.find(header_key, begin) != std::string_view::npos) {
    damaged(path, "the header has two checksums");
  }
  if (header.size() < begin + no_checksum.size()) damaged(path, "the header's checksum is cut off");
  std::string blank(header);
  blank.replace(begin, no_checksum.size(), no_checksum);
  const std::string_view promised = header.substr(begin, no_checksum.size());
  const std::string found = hash_of(blank);
  if (promised != found) {
    damaged(path, "the header's checksum is {}, its bytes give {}", promised, found);
  }
}

TensorEntry parse_entry(const std::string& name, const Json& json, const std::string& path) {
  if (!json.is_object()) damaged(path, "\"{}\" is {}, not an object", name, json.kind());
  const Json* dtype = json.find("dtype");
  const Json* shape = json.find("shape");
  const Json* offsets = json.find("data_offsets");
  if (dtype == nullptr || shape == nullptr || offsets == nullptr || json.object().size() != 3) {
    damaged(path, "\"{}\" needs dtype, shape and data_offsets, and nothing else", name);
  }
  TensorEntry entry;
  entry.name = name;

  if (!dtype->is_string()) damaged(path, "the dtype of \"{}\" is {}", name, dtype->kind());
  const auto* format = std::find_if(std::begin(formats), std::end(formats),
                                    [&](const Format& f) { return f.name == dtype->string(); });
  if (format == std::end(formats)) {
    damaged(path, "\"{}\" has dtype \"{}\"; known are F64, F32, F16, BF16, I64, I32 and U8", name,
            dtype->string());
  }
  entry.dtype = format->dtype;

  if (!shape->is_array()) damaged(path, "the shape of \"{}\" is {}", name, shape->kind());
  if (shape->array().size() > max_rank) {
    damaged(path, "\"{}\" has {} axes; at most {} can be read", name, shape->array().size(),
            max_rank);
  }
  int64_t bytes = size_of(entry.dtype);
  for (const Json& size : shape->array()) {
    if (!size.is_integer() || size.integer() < 0) {
      damaged(path, "the shape of \"{}\" holds something other than sizes from 0 on", name);
    }
    entry.shape.push_back(size.integer());
    // Sizes after a zero must not overflow either, because strides are products of them.
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size.integer(), 1), &bytes)) {
      damaged(path, "the sizes of \"{}\" overflow 64 bits", name);
    }
  }
  if (numel(entry.shape) == 0) bytes = 0;

  if (!offsets->is_array() || offsets->array().size() != 2 || !offsets->array()[0].is_integer() ||
      !offsets->array()[1].is_integer()) {
    damaged(path, "the data_offsets of \"{}\" are not two integers", name);
  }
  entry.begin = offsets->array()[0].integer();
  entry.end = offsets->array()[1].integer();
  if (entry.begin < 0 || entry.end < entry.begin) {
    damaged(path, "the data_offsets [{}, {}] of \"{}\" are no range", entry.begin, entry.end, name);
  }
  if (entry.end - entry.begin != bytes) {
    damaged(path, "\"{}\", {}{}, needs {} bytes and has {}", name, name_of(entry.dtype),
            to_string(entry.shape), bytes, entry.end - entry.begin);
  }
  return entry;
}

/// An open tensor file.
struct TensorFile {
  TensorFile(const std::string& file_path, Checksums checksums)
      : path(file_path), file(open_to_read(path, "state")) {
    const int64_t bytes = size_of_file(file, path, "state");
    if (bytes < 8) damaged(path, "{} bytes are too few for a header", bytes);
    uint64_t length = 0;
    read_exactly(file, path, "state", 0, &length, 8);
    if (length > static_cast<uint64_t>(std::min(bytes - 8, max_header_bytes))) {
      damaged(path, "its header claims {} bytes; the file has {} and the limit is {}", length,
              bytes - 8, max_header_bytes);
    }
    std::string text(static_cast<size_t>(length), '\0');
    read_exactly(file, path, "state", 8, text.data(), static_cast<int64_t>(length));
    header = parse_tensor_header(text, bytes, path, checksums);
    for (const auto& [key, value] : header.metadata) {
      if (key == "xxh3") checksum = value;
      if (key.rfind(tensor_key, 0) == 0)
        sums[std::string_view(key).substr(tensor_key.size())] = &value;
    }
  }

  /// Reads one tensor's data, passes it to `take` piece by piece and compares its checksum.
  template <class F>
  void read(const TensorEntry& entry, F&& take) {
    buffer.resize(static_cast<size_t>(std::min(piece, entry.end - entry.begin)));
    Hash hash;
    for (int64_t at = entry.begin; at < entry.end;) {
      const int64_t count = std::min(piece, entry.end - at);
      read_exactly(file, path, "state", header.data_begin + at, buffer.data(), count);
      hash.add(buffer.data(), count);
      take(at - entry.begin, buffer.data(), count);
      at += count;
    }
    const auto promised = sums.find(entry.name);
    if (promised != sums.end() && *promised->second != hash.digest()) {
      damaged(path, "the checksum of \"{}\" is {}, its bytes give {}", entry.name,
              *promised->second, hash.digest());
    }
  }
  void read(const TensorEntry& entry, Tensor tensor) {
    char* to = static_cast<char*>(tensor.mut().data);
    read(entry, [&](int64_t offset, const char* from, int64_t count) {
      copy_from_host(tensor.device(), to + offset, from, count);
    });
  }
  void verify() {
    int64_t largest = 0;
    for (const TensorEntry& entry : header.entries) {
      read(entry, [](int64_t, const char*, int64_t) {});
      largest = std::max(largest, entry.end - entry.begin);
    }
    buffer.resize(static_cast<size_t>(std::min(piece, largest)));
  }
  /// Reads a tensor after verify() has checked it. Allocates no memory, because other tensors may
  /// have been overwritten already.
  void load(const TensorEntry& entry, Tensor tensor) {
    char* to = static_cast<char*>(tensor.mut().data);
    for (int64_t at = entry.begin; at < entry.end;) {
      const int64_t count = std::min(std::ssize(buffer), entry.end - at);
      read_exactly(file, path, "state", header.data_begin + at, buffer.data(), count);
      copy_from_host(tensor.device(), to + (at - entry.begin), buffer.data(), count);
      at += count;
    }
  }

  std::string path;
  File file;
  TensorHeader header;
  std::string checksum;                                           // the header's
  std::unordered_map<std::string_view, const std::string*> sums;  // of tensors
  std::vector<char> buffer;
};

/// Pairs every tensor with its entry. Throws IoError if one has no partner or another shape or
/// dtype, or, unless `others` may be there, if the file has more.
std::vector<const TensorEntry*> match(const TensorFile& file, const TensorList& into,
                                      bool others = false) {
  std::unordered_map<std::string_view, const TensorEntry*> entries;
  for (const TensorEntry& entry : file.header.entries) entries[entry.name] = &entry;
  std::vector<const TensorEntry*> matched;
  for (const NamedTensor& wanted : into) {
    const auto found = entries.find(wanted.name);
    require<IoError>(found != entries.end(), "state",
                     "{} has no tensor \"{}\": it was written by another model or optimizer",
                     file.path, wanted.name);
    const TensorEntry& entry = *found->second;
    require<IoError>(entry.dtype == wanted.tensor.dtype() && entry.shape == wanted.tensor.shape(),
                     "state",
                     "\"{}\" is {}{} in {}, expected {}{}: it was written with other options",
                     wanted.name, name_of(entry.dtype), to_string(entry.shape), file.path,
                     name_of(wanted.tensor.dtype()), to_string(wanted.tensor.shape()));
    require(wanted.tensor.contiguous(), "state", "\"{}\" is not contiguous", wanted.name);
    matched.push_back(&entry);
    entries.erase(found);
  }
  if (!entries.empty() && !others) {
    std::string_view first;  // in file order, so that the message is deterministic
    for (const TensorEntry& entry : file.header.entries) {
      if (entries.count(entry.name) > 0 && first.empty()) first = entry.name;
    }
    fail<IoError>("state", "{} has {} tensors that nothing here takes, the first is \"{}\"",
                  file.path, entries.size(), first);
  }
  return matched;
}

void load(TensorFile& file, const std::vector<const TensorEntry*>& entries,
          const TensorList& into) {
  for (size_t i = 0; i < into.size(); ++i) file.load(*entries[i], into[i].tensor);
}

/// Returns the checksum of a tensor's data, or with `to` writes the data to the file.
std::string write_data(const Tensor& tensor, const File* to, const std::string& path) {
  const ConstView view = tensor.view();
  const auto* from = static_cast<const char*>(view.data);
  const int64_t bytes = tensor.nbytes();
  const bool on_host = tensor.device().kind == DeviceKind::cpu;
  deferred::raise_pending(tensor.device());
  std::vector<char> buffer(on_host ? 0 : static_cast<size_t>(std::min(piece, bytes)));
  Hash hash;
  for (int64_t at = 0; at < bytes; at += piece) {
    const int64_t count = std::min(piece, bytes - at);
    const char* data = from + at;
    if (!on_host) {
      copy_to_host(tensor.device(), buffer.data(), data, count);
      data = buffer.data();
    }
    if (to == nullptr) {
      hash.add(data, count);
    } else {
      write_exactly(*to, path, "state", data, count);
    }
  }
  return hash.digest();
}

/// Writes a whole file and syncs it. Returns the header's checksum.
std::string write_tensor_file(const File& file, const std::string& path, const TensorList& tensors,
                              const Metadata& metadata) {
  std::unordered_set<std::string_view> names;
  for (const NamedTensor& t : tensors) {
    require(!t.name.empty() && t.name != "__metadata__", "state", "\"{}\" cannot name a tensor",
            t.name);
    require(names.insert(t.name).second, "state", "two tensors are called \"{}\"", t.name);
    require(t.tensor && t.tensor.contiguous(), "state", "\"{}\" is {}", t.name,
            t.tensor ? "not contiguous" : "undefined");
  }
  // Sorts wide elements first, so that every tensor is aligned to its elements.
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return size_of(a->tensor.dtype()) > size_of(b->tensor.dtype());
  });

  Members notes;
  for (const auto& [key, value] : metadata) {
    require(key.rfind("xxh3", 0) != 0, "state", "the metadata \"{}\" is ours to write", key);
    notes.push_back({key, value});
  }
  notes.push_back({"xxh3", no_checksum});
  for (const NamedTensor* t : order) {
    notes.push_back({fmt::format("{}{}", tensor_key, t->name), write_data(t->tensor, nullptr, {})});
  }
  Members members{{"__metadata__", std::move(notes)}};
  int64_t offset = 0;
  for (const NamedTensor* t : order) {
    Json::Array shape;
    for (const int64_t size : t->tensor.shape()) shape.push_back(size);
    const int64_t end = offset + t->tensor.nbytes();
    members.push_back(
        {t->name, Members{{"dtype", formats[static_cast<int>(t->tensor.dtype())].name},
                          {"shape", std::move(shape)},
                          {"data_offsets", Json::Array{offset, end}}}});
    offset = end;
  }

  std::string header = to_string(Json(std::move(members)));
  header.resize((header.size() + 7) / 8 * 8, ' ');  // aligns the data section
  require(static_cast<int64_t>(header.size()) <= max_header_bytes, "state",
          "{} tensors need a header of {} bytes; the limit is {}", tensors.size(), header.size(),
          max_header_bytes);
  std::string checksum = hash_of(header);
  header.replace(header.find(header_key) + header_key.size(), checksum.size(), checksum);

  const uint64_t length = header.size();
  write_exactly(file, path, "state", &length, 8);
  write_exactly(file, path, "state", header.data(), static_cast<int64_t>(length));
  for (const NamedTensor* t : order) write_data(t->tensor, &file, path);
  sync(file, path, "state");
  return checksum;
}

File create(const std::string& path) {
  File file = open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
  require<IoError>(static_cast<bool>(file), "state", "cannot create {}: {}", path, error_text());
  return file;
}

// state.json: an object whose last member is the checksum of the text before that member.
constexpr std::string_view state_key = ",\"xxh3\":\"";
constexpr std::string_view state_end = "\"}\n";

void write_values(const std::string& path, const Members& values) {
  std::string text = to_string(Json(values));
  text.pop_back();  // the closing brace
  const std::string sum = hash_of(text);
  text += fmt::format("{}{}{}", state_key, sum, state_end);
  const File file = create(path);
  write_exactly(file, path, "state", text.data(), static_cast<int64_t>(text.size()));
  sync(file, path, "state");
}

Json parse_values(const std::string& text, const std::string& path) {
  const size_t tail = state_key.size() + no_checksum.size() + state_end.size();
  const std::string_view all = text;
  if (all.size() < tail || all.substr(all.size() - tail, state_key.size()) != state_key ||
      all.substr(all.size() - state_end.size()) != state_end) {
    damaged(path, "it does not end with a checksum");
  }
  const std::string_view body = all.substr(0, all.size() - tail);
  const std::string_view promised =
      all.substr(all.size() - state_end.size() - no_checksum.size(), no_checksum.size());
  if (promised != hash_of(body)) {
    damaged(path, "its checksum is {}, its bytes give {}", promised, hash_of(body));
  }
  try {
    Json values = parse_json(all);
    if (!values["step"].is_integer() || !values["files"].is_object()) {
      damaged(path, "\"step\" or \"files\" is of the wrong kind");
    }
    return values;
  } catch (const ValueError& error) {
    damaged(path, "{}", error.what());
  }
}

constexpr const char* model_name = "model.safetensors";
constexpr const char* optimizer_name = "optimizer.safetensors";

/// Opens one of a checkpoint's tensor files and checks that state.json lists its checksum.
TensorFile open_part(const std::string& checkpoint, const Json& values, const char* name) {
  TensorFile file(checkpoint + "/" + name, Checksums::required);
  const Json* promised = values["files"].find(name);
  if (promised == nullptr || !promised->is_string() || promised->string() != file.checksum) {
    damaged(file.path, "it is not the file that state.json was written with");
  }
  return file;
}

std::string checkpoints_folder(const std::string& run) { return run + "/checkpoints"; }

/// Parses N of "step-N"; nullopt for any other name.
std::optional<int64_t> step_of(std::string_view name) {
  if (name.rfind("step-", 0) != 0) return std::nullopt;
  const std::string_view digits = name.substr(5);
  int64_t step = 0;
  const auto [end, problem] = std::from_chars(digits.begin(), digits.end(), step);
  if (problem != std::errc() || end != digits.end() || step < 0) return std::nullopt;
  if (std::to_string(step) != digits) return std::nullopt;  // leading zeros
  return step;
}

void require_finite(int64_t step, const TensorList& tensors) {
  const std::string name = first_nonfinite(tensors);
  require<NonfiniteState>(name.empty(), "state",
                          "\"{}\" holds NaN or infinity after step {}: no checkpoint is written",
                          name, step);
}

/// Removes a checkpoint by renaming it first, so that it is never incomplete under its name.
void remove_checkpoint(const std::string& folder, const std::string& path) {
  try {
    const Temporary grave(Temporary::folder, folder, "state");
    const std::string inside = grave.path() + "/old";
    if (::rename(path.c_str(), inside.c_str()) == 0) sync_folder(folder, "state");
  } catch (const IoError&) {  // failing to remove an old checkpoint must not stop a run
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

TensorHeader parse_tensor_header(std::string_view text, int64_t file_bytes, const std::string& path,
                                 Checksums checksums) {
  check_header(text, path, checksums);
  TensorHeader header;
  header.data_begin = 8 + static_cast<int64_t>(text.size());
  if (text.empty() || text[0] != '{') damaged(path, "its header does not begin with '{{'");
  constexpr std::string_view metadata = "__metadata__";
  const auto take = [&](const std::string& name, const Json& value) {
    if (name == metadata) damaged(path, "{} is {}, not an object", metadata, value.kind());
    header.entries.push_back(parse_entry(name, value, path));
  };
  const auto take_note = [&](std::string name, const Json& value) {
    if (!value.is_string()) {
      damaged(path, "metadata \"{}\" is {}, not a string", name, value.kind());
    }
    header.metadata.emplace_back(std::move(name), value.string());
  };
  try {
    parse_members(text, 3, take, metadata, take_note);
  } catch (const ValueError& error) {
    damaged(path, "its header is not valid: {}", error.what());
  }
  std::unordered_set<std::string_view> names, notes;
  const auto add = [&](auto& known, const std::string& name) {
    if (!known.insert(name).second) {
      damaged(path, "its header is not valid: \"{}\" is given twice", name);
    }
  };
  for (const TensorEntry& entry : header.entries) add(names, entry.name);
  for (const auto& [name, value] : header.metadata) add(notes, name);

  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  int64_t end = 0;
  for (const TensorEntry& entry : header.entries) {
    if (entry.begin < end) damaged(path, "\"{}\" overlaps the tensor before it", entry.name);
    if (entry.begin > end) {
      damaged(path, "{} bytes before \"{}\" belong to no tensor", entry.begin - end, entry.name);
    }
    end = entry.end;
  }
  const int64_t data_bytes = file_bytes - header.data_begin;
  if (end != data_bytes) {
    damaged(path, "its tensors need {} bytes of data; the file has {}", end, data_bytes);
  }

  if (checksums == Checksums::required) {
    for (const TensorEntry& entry : header.entries) {
      const std::string key = fmt::format("{}{}", tensor_key, entry.name);
      if (notes.count(key) == 0) damaged(path, "\"{}\" has no checksum", entry.name);
    }
    const auto sums = std::count_if(notes.begin(), notes.end(), [](std::string_view key) {
      return key.substr(0, tensor_key.size()) == tensor_key;
    });
    if (sums != std::ssize(header.entries)) damaged(path, "it has checksums without tensors");
  }
  return header;
}

TensorHeader read_tensor_header(const std::string& path, Checksums checksums) {
  return TensorFile(path, checksums).header;
}

void write_tensors(const std::string& path, const TensorList& tensors,
                   const Metadata& metadata) try {
  const size_t slash = path.find_last_of('/');
  Temporary temporary(Temporary::file, slash == std::string::npos ? "." : path.substr(0, slash + 1),
                      "state");
  write_tensor_file(temporary.handle(), path, tensors, metadata);
  temporary.commit(path);
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

TensorList read_tensors(const std::string& path, Device device, Category category) try {
  TensorFile file(path, Checksums::optional);
  TensorList tensors;
  for (const TensorEntry& entry : file.header.entries) {
    Tensor tensor = Tensor::empty(entry.shape, entry.dtype, device, category);
    file.read(entry, tensor);
    tensors.push_back({entry.name, std::move(tensor)});
  }
  return tensors;
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

void load_tensors(const std::string& path, const TensorList& into, Checksums checksums) try {
  TensorFile file(path, checksums);
  const std::vector<const TensorEntry*> entries = match(file, into);
  file.verify();
  load(file, entries, into);
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

std::vector<int64_t> saved_steps(const std::string& run) try {
  const std::string folder = checkpoints_folder(run);
  std::vector<int64_t> steps;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
  if (!directory) {
    require<IoError>(errno == ENOENT, "state", "cannot look into {}: {}", folder, error_text());
    return steps;
  }
  while (const dirent* entry = readdir(directory.get())) {
    if (const std::optional<int64_t> step = step_of(entry->d_name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

std::string checkpoint_path(const std::string& run, int64_t step) {
  return fmt::format("{}/step-{}", checkpoints_folder(run), step);
}

std::string newest_checkpoint(const std::string& run) try {
  const std::vector<int64_t> steps = saved_steps(run);
  return steps.empty() ? "" : checkpoint_path(run, steps.back());
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

std::string checksum_of(const TensorList& tensors) {
  uint64_t sum = 0;
  for (const NamedTensor& t : tensors) {
    const Tensor x = to_device(contiguous(t.tensor.detach()), {});
    sum = XXH3_64bits_withSeed(t.name.data(), t.name.size(), sum);
    if (x.numel() == 0) continue;
    sum = XXH3_64bits_withSeed(x.view().data, static_cast<size_t>(x.nbytes()), sum);
  }
  return hex(sum);
}

std::string first_nonfinite(const TensorList& tensors) {
  for (const NamedTensor& t : tensors) {
    if (!t.tensor || !is_floating(t.tensor.dtype()) || t.tensor.numel() == 0) continue;
    bool finite = true;
    kernels::all_finite(t.tensor.device(), t.tensor.view(), &finite);
    if (!finite) return t.name;
  }
  return {};
}

std::string write_state(const std::string& run, int64_t step, const TensorList& parameters,
                        const TensorList& optimizer, const Members& values, int keep,
                        const TensorList& overflowing) try {
  require(step >= 0, "state", "step {} of a checkpoint is negative", step);
  require(keep >= 0, "state", "keep {} checkpoints: expected 0 (all) or more", keep);
  require_finite(step, parameters);
  require_finite(step, optimizer);
  const std::string folder = checkpoints_folder(run);
  make_folders(folder, "state");
  sweep(folder);

  std::string path = checkpoint_path(run, step);
  {
    Temporary temporary(Temporary::folder, folder, "state");
    Members sums;
    const auto add = [&](const char* name, const TensorList& tensors) {
      const std::string part = temporary.path() + "/" + name;
      sums.push_back({name, write_tensor_file(create(part), part, tensors, {})});
    };
    add(model_name, parameters);
    TensorList rest = optimizer;
    rest.insert(rest.end(), overflowing.begin(), overflowing.end());
    add(optimizer_name, rest);
    Members all{{"step", step}};
    for (const JsonMember& member : values) {
      require(member.name != "step" && member.name != "files" && member.name != "xxh3", "state",
              "the value \"{}\" is ours to write", member.name);
      all.push_back(member);
    }
    all.push_back({"files", std::move(sums)});
    write_values(temporary.path() + "/state.json", all);
    temporary.commit(path);
  }

  prune_checkpoints(run, keep, {step});
  return path;
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

void prune_checkpoints(const std::string& run, int keep, const std::vector<int64_t>& spared) {
  if (keep <= 0) return;
  const std::vector<int64_t> steps = saved_steps(run);
  for (size_t i = 0; i + static_cast<size_t>(keep) < steps.size(); ++i) {
    if (std::find(spared.begin(), spared.end(), steps[i]) == spared.end()) {
      remove_checkpoint(checkpoints_folder(run), checkpoint_path(run, steps[i]));
    }
  }
}

Json read_values(const std::string& checkpoint) {
  const std::string path = checkpoint + "/state.json";
  Json values = parse_values(read_file(path, "state"), path);
  const std::string name = std::filesystem::path(checkpoint).filename().string();
  if (const auto step = step_of(name); step && *step != values["step"].integer()) {
    damaged(path, "it is of step {} and lies in {}: give the folder its name back",
            values["step"].integer(), name);
  }
  return values;
}

TensorHeader read_optimizer_header(const std::string& checkpoint) {
  return read_tensor_header(fmt::format("{}/{}", checkpoint, optimizer_name));
}

Json read_state(const std::string& checkpoint, const TensorList& parameters,
                const TensorList& optimizer) try {
  Json values = read_values(checkpoint);
  TensorFile model_file = open_part(checkpoint, values, model_name);
  TensorFile optimizer_file = open_part(checkpoint, values, optimizer_name);
  const auto model_entries = match(model_file, parameters);
  const auto optimizer_entries = match(optimizer_file, optimizer);
  model_file.verify();
  optimizer_file.verify();
  load(model_file, model_entries, parameters);
  load(optimizer_file, optimizer_entries, optimizer);
  return values;
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

Json read_parameters(const std::string& checkpoint, const TensorList& parameters) try {
  Json values = read_values(checkpoint);
  TensorFile file = open_part(checkpoint, values, model_name);
  const auto entries = match(file, parameters);
  file.verify();
  load(file, entries, parameters);
  return values;
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

void read_optimizer_tensors(const std::string& checkpoint, const TensorList& into) try {
  TensorFile file = open_part(checkpoint, read_values(checkpoint), optimizer_name);
  const auto entries = match(file, into, true);
  file.verify();
  load(file, entries, into);
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

void verify_checkpoint(const std::string& checkpoint) try {
  const Json values = read_values(checkpoint);
  open_part(checkpoint, values, model_name).verify();
  open_part(checkpoint, values, optimizer_name).verify();
} catch (const std::bad_alloc&) {
  fail_for_memory("state");
}

}  // namespace longspan
