#include "data/profiles.h"

#include <algorithm>

#include "core/error.h"
#include "data/corpus.h"
#include "data/draws.h"
#include "data/io/arrays.h"
#include "data/io/bytes.h"

namespace longspan {
namespace {

constexpr int32_t any_base = 4;

/// FASTA records of one label or both.
struct Records {
  std::string path;
  Sequences sequences;
};

Records read_records(const std::string& path, Headers headers) {
  Records r{path, {}};
  const FileBytes file = open_bytes(path, "promoters");
  require<IoError>(!file.bytes.empty(), "promoters", "{} is empty; expected records of FASTA",
                   path);
  r.sequences = read_fasta(file.text(), bases, 'N', path, headers);
  for (size_t i = 0; i < r.sequences.others.size(); ++i) {
    constexpr std::string_view codes = "URYSWKMBDHVX";
    const char c = r.sequences.others[i];
    require<IoError>(
        codes.find(c) != std::string_view::npos, "promoters",
        "{}: line {} has the letter {}; expected bases: A C G T, N and {} for unknown ones", path,
        r.sequences.other_lines[i], c, codes);
  }
  return r;
}

/// Returns the label in a header that ends in "label=1" or "label=0".
int32_t label_of(const std::string& header, const std::string& path, int64_t line) {
  constexpr std::string_view key = "label=";
  const size_t at = header.rfind(key);
  const std::string_view value =
      at == std::string::npos ? "" : std::string_view(header).substr(at + key.size());
  require<IoError>(value == "0" || value == "1", "promoters",
                   "{}: the header of line {} does not end in label=0 or label=1: \">{}\"", path,
                   line, header);
  return value == "1" ? 1 : 0;
}

class Promoters final : public LabelledSequences {
 public:
  Promoters(const DataPlace& place, std::string_view split, uint64_t seed) : seed_(seed) {
    const DataSet& set = find_data_set("promoter");
    const std::string problem = missing_files(set, place);
    require<IoError>(problem.empty(), "promoters", "{}", problem);
    const std::vector<FoundFile> found = find_files(set, place);
    const bool both_in_one = found.size() == 1;
    for (const FoundFile& f : found) {
      if (f.path.empty()) continue;
      files_.push_back(read_records(f.path, both_in_one ? Headers::keep : Headers::skip));
    }
    std::vector<Record> of[2];  // negative, positive
    for (size_t f = 0; f < files_.size(); ++f) {
      const Sequences& s = files_[f].sequences;
      for (int64_t i = 0; i < s.size(); ++i) {
        const auto line = s.lines[static_cast<size_t>(i)];
        const int32_t label =
            both_in_one ? label_of(s.headers[static_cast<size_t>(i)], files_[f].path, line)
                        : f == 0;
        require_length(f, i);
        of[label].push_back({f, i, label, false});
      }
      files_[f].sequences.headers = {};  // no longer needed
    }
    if (!both_in_one && files_.size() == 1) {
      for (Record r : of[1]) of[0].push_back({r.file, r.index, 0, true});
    }
    for (const std::vector<Record>& kind : of) {
      const auto cuts = Split::parse(split).cuts(static_cast<int64_t>(kind.size()));
      for (size_t i = 0; i < kind.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        parts_[at < cuts[0] ? 0 : at < cuts[1] ? 1 : 2].push_back(kind[i]);
      }
    }
  }

  int64_t size(size_t part) const override { return static_cast<int64_t>(parts_[part].size()); }
  int64_t answers() const override { return 1; }
  int64_t length() const override { return static_cast<int64_t>(files_[0].sequences[0].size()); }

  Sample sample(size_t part, int64_t i) const override {
    const Record& r = parts_[part][static_cast<size_t>(i)];
    const std::span<const uint8_t> ids = files_[r.file].sequences[r.index];
    Sample s{{ids.begin(), ids.end()}, {r.label}};
    if (r.made) {
      const Generator gen = Generator{seed_}.fork("negatives").fork(uint64_t(r.index));
      s.tokens = negative_of(s.tokens, gen);
    }
    return s;
  }

 private:
  struct Record {
    size_t file;
    int64_t index;
    int32_t label;
    bool made;  // made by negative_of() from the record
  };

  void require_length(size_t file, int64_t i) const {
    const Sequences& s = files_[file].sequences;
    const auto found = static_cast<int64_t>(s[i].size());
    require<IoError>(found == length(), "promoters",
                     "{}: the record of line {} has {} bases and the first of {} has {}; expected "
                     "windows of one length",
                     files_[file].path, s.lines[static_cast<size_t>(i)], found, files_[0].path,
                     length());
  }

  uint64_t seed_;
  std::vector<Records> files_;
  std::vector<Record> parts_[3];
};

/// x and y, from one file or two.
struct Profile {
  NumpyArray x, y;
};

void require_shapes(const Profile& p) {
  require<IoError>(p.x.shape.size() == 3 && p.x.shape[2] == 4, "profiles",
                   "{}: {} is {}; expected [N, L, 4], a column each for A C G T", p.x.path,
                   p.x.name.empty() ? "x" : p.x.name, p.x.text());
  require<IoError>(p.x.shape[0] >= 1 && p.x.shape[1] >= 1, "profiles",
                   "{}: x is {}; expected one sample or more, of one base or more", p.x.path,
                   p.x.text());
  require<IoError>(p.y.shape.size() == 2 && p.y.shape[0] == p.x.shape[0] && p.y.shape[1] >= 1,
                   "profiles", "{}: y is {}; expected [{}, answers], a row for each of x", p.y.path,
                   p.y.text(), p.x.shape[0]);
}

/// Returns the array of a file that must contain exactly one.
NumpyArray only_array(const std::string& path) {
  std::vector<NumpyArray> arrays = read_numpy(path);
  require<IoError>(arrays.size() == 1, "profiles",
                   "{} has {} arrays; expected one, as numpy.save writes it", path, arrays.size());
  return std::move(arrays[0]);
}

class Profiles final : public LabelledSequences {
 public:
  Profiles(const DataPlace& place, std::string_view split) {
    const DataSet& set = find_data_set("chromatin");
    const std::string problem = missing_files(set, place);
    require<IoError>(problem.empty(), "profiles", "{}", problem);
    const std::vector<FoundFile> found = find_files(set, place);
    for (size_t i = 0; i < found.size(); ++i) {
      const auto& [file, path, half] = found[i];
      if (!half.empty()) {  // x is in this file, y in the next
        add({only_array(path), only_array(found[i + 1].path)}, file.part, split);
        ++i;
        continue;
      }
      constexpr std::string_view names[] = {"x", "y"};
      std::vector<NumpyArray> arrays = read_numpy(path, names);
      add({std::move(arrays[0]), std::move(arrays[1])}, file.part, split);
    }
  }

  int64_t size(size_t part) const override { return parts_[part].count; }
  int64_t answers() const override { return files_[0].y.shape[1]; }
  int64_t length() const override { return files_[0].x.shape[1]; }

  Sample sample(size_t part, int64_t i) const override {
    const Profile& p = files_[parts_[part].file];
    const int64_t row = parts_[part].begin + i, n = length(), answered = answers();
    Sample s;
    for (int64_t b = 0; b < n; ++b) s.tokens.push_back(base(p.x, row, b));
    for (int64_t a = 0; a < answered; ++a) {
      const double label = p.y[row * answered + a];
      require<IoError>(label == 0 || label == 1, "profiles", "{}: y[{}, {}] is {}; expected 0 or 1",
                       p.y.path, row, a, label);
      s.targets.push_back(static_cast<int32_t>(label));
    }
    return s;
  }

 private:
  struct Rows {
    size_t file = 0;
    int64_t begin = 0, count = 0;
  };

  void add(Profile p, int part, std::string_view split) {
    require_shapes(p);
    files_.push_back(std::move(p));
    const NumpyArray &x = files_.back().x, &y = files_.back().y;
    require<IoError>(x.shape[1] == length() && y.shape[1] == answers(), "profiles",
                     "{} has samples of {} bases and {} answers, and {} of {} and {}; expected the "
                     "same",
                     x.path, x.shape[1], y.shape[1], files_[0].x.path, length(), answers());
    const size_t file = files_.size() - 1;
    if (part >= 0) {
      parts_[part] = {file, 0, x.shape[0]};
      return;
    }
    const auto cuts = Split::parse(split).cuts(x.shape[0]);
    parts_[0] = {file, 0, cuts[0]};
    parts_[1] = {file, cuts[0], cuts[1] - cuts[0]};
    parts_[2] = {file, cuts[1], x.shape[0] - cuts[1]};
  }

  int32_t base(const NumpyArray& x, int64_t row, int64_t b) const {
    int32_t found = any_base;
    for (int64_t c = 0; c < 4; ++c) {
      const double v = x[(row * length() + b) * 4 + c];
      require<IoError>(v == 0 || (v == 1 && found == any_base), "profiles",
                       "{}: x[{}, {}] is no base: [{}, {}, {}, {}]; expected one 1 and three 0, or "
                       "0 alone",
                       x.path, row, b, x[(row * length() + b) * 4], x[(row * length() + b) * 4 + 1],
                       x[(row * length() + b) * 4 + 2], x[(row * length() + b) * 4 + 3]);
      if (v == 1) found = static_cast<int32_t>(c);
    }
    return found;
  }

  std::vector<Profile> files_;
  Rows parts_[3];
};

}  // namespace

std::vector<int32_t> KmerTokens::tokens(std::span<const int32_t> sequence) const {
  require(k >= 1 && k <= 8, "kmer", "got tokens of {} bases; expected 1 to 8", k);
  require(stride >= 1, "stride", "got {}; expected 1 or more", stride);
  std::vector<int32_t> out{first()};
  const auto n = static_cast<int64_t>(sequence.size());
  for (int64_t i = 0; i + k <= n; i += stride) {
    int32_t token = 0;
    bool known = true;
    for (int64_t j = i; j < i + k; ++j) {
      const int32_t base = sequence[static_cast<size_t>(j)];
      known = known && base < any_base;
      token = 4 * token + base;
    }
    out.push_back(known ? token : unknown());
  }
  return out;
}

std::vector<int32_t> negative_of(std::span<const int32_t> sequence, Generator gen, int64_t pieces,
                                 int64_t kept) {
  require(pieces >= 1 && kept >= 0 && kept <= pieces, "negatives",
          "got {} of {} pieces to keep; expected 0 to all", kept, pieces);
  const Permutation order(pieces, gen.fork("pieces"));
  Draws draws(gen.fork("bases"));
  std::vector<int32_t> out(sequence.begin(), sequence.end());
  const auto n = static_cast<int64_t>(out.size());
  for (int64_t p = 0; p < pieces; ++p) {
    if (order[p] < kept) continue;
    for (int64_t i = p * n / pieces; i < (p + 1) * n / pieces; ++i) {
      out[static_cast<size_t>(i)] = static_cast<int32_t>(draws.below(4));
    }
  }
  return out;
}

std::unique_ptr<LabelledSequences> open_promoters(const DataPlace& place, std::string_view split,
                                                  uint64_t seed) {
  return std::make_unique<Promoters>(place, split, seed);
}

std::unique_ptr<LabelledSequences> open_profiles(const DataPlace& place, std::string_view split) {
  return std::make_unique<Profiles>(place, split);
}

std::unique_ptr<LabelledSequences> open_labelled(const DataSet& set, const DataPlace& place,
                                                 std::string_view split, uint64_t seed) {
  const std::string_view shares = split.empty() ? set.split : split;
  if (set.kind == DataKind::promoters) return open_promoters(place, shares, seed);
  require(set.kind == DataKind::profiles, "data", "{} has {}s; expected samples with answers",
          set.id, unit_of(set.kind));
  return open_profiles(place, shares);
}

}  // namespace longspan
