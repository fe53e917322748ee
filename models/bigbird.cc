// BigBird, Zaheer et al. 2020 (2007.14062): attention over blocks of b tokens, of which every row
// of blocks sees its neighbours (window), r drawn once and for all (random), and the first and the
// last one, which see everything themselves (global).
//
// The paper's appendix makes the first blocks global and lets the window wrap around; the released
// code, which this follows, takes the first and the last and does not wrap. The released code also
// draws all random blocks from the first 1,024 tokens at the lengths of the paper (first_1024) and
// may count a block twice; here a row sees each block once, unless its blocks are given and
// count_repeats is set.

#include "models/bigbird.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/divide.h"
#include "models/blueprint.h"
#include "ops/copy.h"

namespace longspan {
namespace {

constexpr const char* kName = "bigbird";
// Where first_1024 draws from.
constexpr int64_t kFirstTokens = 1024;

constexpr Preset presets[] = {
    {"small", "4 layers of 128, blocks of 16, length 1024; masked bytes in minutes"},
    {"tiny", "2 layers of 16, blocks of 4, 2 random blocks, 23 tokens; for tests"},
    {"base", "12 layers of 768, blocks of 64, 3 random blocks, length 4096"},
    {"large", "24 layers of 1024, blocks of 64, 3 random blocks, length 4096"},
    {"dna", "the base model with 32,000 tokens, for pieces of genomes"},
};

TrainingDefaults defaults_of(std::string_view preset) {
  if (preset == "small") {
    return {.length = 1024, .batch = 2, .steps = 800, .lr = 2e-3, .warmup = 80, .clip = 1};
  }
  if (preset == "tiny") return {.length = 45, .batch = 4, .steps = 200};
  // Appendix E: Adam, warm-up of 10,000 steps, linear decay.
  return {.length = 4096,
          .batch = preset == "large" ? 2048 : 256,
          .steps = 500'000,
          .lr = 1e-4,
          .warmup = 10'000,
          .lr_floor = 0,
          .clip = 1,
          .weight_decay = 0.01};
}

std::unique_ptr<Blueprint> make(std::string_view preset) {
  return std::make_unique<BlueprintOf<BigBird, BigBirdConfig>>(bigbird_preset(preset),
                                                               defaults_of(preset));
}

void check(const BigBirdConfig& c) {
  require_positive(kName, "block", c.block);
  require(c.n_random >= 0 && c.n_random <= c.n_max, kName,
          "n_random is {}; expected 0 or more, and no more blocks than n_max = {} tokens",
          c.n_random, c.n_max);
  require(!c.count_repeats || c.random == RandomPlan::given, kName,
          "count_repeats is for random = given; random = {} repeats no block",
          name_of_value(c.random));
}

/// `count` of `from`, ascending: the first steps of a Fisher-Yates shuffle.
std::vector<int64_t> draw(std::vector<int64_t> from, int64_t count, Generator gen) {
  const auto n = static_cast<int64_t>(from.size());
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t pick = (uint64_t{philox_word(gen.key, i)} * static_cast<uint64_t>(n - i)) >> 32;
    std::swap(from[static_cast<size_t>(i)], from[static_cast<size_t>(i) + pick]);
  }
  from.resize(static_cast<size_t>(count));
  std::sort(from.begin(), from.end());
  return from;
}

}  // namespace

std::vector<std::vector<int64_t>> random_blocks(const BigBirdConfig& c, int64_t layer, int64_t head,
                                                int64_t n) {
  const int64_t r = c.n_random;
  require(n >= 5 + r, kName, "{} blocks are too few for {} random ones a row; expected {} or more",
          n, r, 5 + r);
  // With r + 5 blocks to choose from, at least r are legal in every row.
  int64_t end = n - 1;
  if (c.random == RandomPlan::first_1024) {
    end = std::min(end, std::max((kFirstTokens + c.block - 1) / c.block, r + 5));
  }
  const Generator gen = Generator{c.random_seed}
                            .fork("bigbird")
                            .fork(static_cast<uint64_t>(layer))
                            .fork(static_cast<uint64_t>(head))
                            .fork(static_cast<uint64_t>(n));
  std::vector<std::vector<int64_t>> rows;
  for (int64_t i = 1; i + 1 < n; ++i) {
    std::vector<int64_t> legal;
    for (int64_t k = 1; k < end; ++k) {
      if (k < i - 1 || k > i + 1) legal.push_back(k);
    }
    rows.push_back(draw(std::move(legal), r, gen.fork(static_cast<uint64_t>(i))));
  }
  return rows;
}

int64_t bigbird_pairs(int64_t n, int64_t b, int64_t r) {
  return b * b * (2 * n + 2 * (4 + r) + (n - 4) * (5 + r));
}

/// Patterns of the latest inputs.
struct BigBird::Layouts {
  static constexpr size_t kept = 4;
  struct Entry {
    int64_t length;
    std::vector<int64_t> valid;
    std::vector<AttentionPattern> patterns;
  };
  std::mutex mutex;
  std::vector<Entry> entries;
};

BigBird::BigBird(const BigBirdConfig& config, const Init& init)
    : Encoder(kName, config, multi_heads(config, init), init),
      config_(config),
      layouts_(std::make_shared<Layouts>()) {
  check(config_);
}

void BigBird::set_random_blocks(const Tensor& blocks) {
  require(config_.random == RandomPlan::given, kName,
          "random = {} draws its own blocks; expected random = given",
          name_of_value(config_.random));
  const bool fits = blocks.rank() == 4 && blocks.dim(0) == config_.n_layer &&
                    blocks.dim(1) == config_.n_head && blocks.dim(3) == config_.n_random;
  if (!fits || blocks.dtype() != DType::i64) {
    fail_with<ShapeError>(kName,
                          fmt::format("random blocks must be i64 [{}, {}, blocks - 2, {}]",
                                      config_.n_layer, config_.n_head, config_.n_random),
                          {{"random_blocks", blocks}});
  }
  random_blocks_ = blocks;
  layouts_ = std::make_shared<Layouts>();
}

BlockTable BigBird::table(int64_t layer, int64_t head, int64_t length) const {
  const int64_t b = std::min(config_.block, std::max<int64_t>(length, 1));
  const int64_t r = config_.n_random, n = ceil_div(length, b);
  if (n < 5 + r) return bigbird_blocks(length, std::max<int64_t>(length, 1), {});
  if (config_.random != RandomPlan::given) {
    return bigbird_blocks(length, b, random_blocks(config_, layer, head, n));
  }
  require(static_cast<bool>(random_blocks_), kName,
          "random = given has no blocks yet; call set_random_blocks()");
  const int64_t rows = random_blocks_.dim(2);
  const auto all = random_blocks_.to_vector<int64_t>();
  std::vector<std::vector<int64_t>> random;
  auto at = all.begin() + (layer * config_.n_head + head) * rows * r;
  for (int64_t i = 0; i < rows; ++i, at += r) random.emplace_back(at, at + r);
  return bigbird_blocks(length, b, random, config_.count_repeats);
}

std::vector<AttentionPattern> BigBird::make_patterns(int64_t length,
                                                     const std::vector<int64_t>& valid) const {
  std::vector<int64_t> distinct = valid;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  const int64_t heads = config_.n_head;
  std::vector<int32_t> which;  // member of (length, head)
  for (const int64_t l : valid) {
    const auto at = std::lower_bound(distinct.begin(), distinct.end(), l) - distinct.begin();
    for (int64_t h = 0; h < heads; ++h) which.push_back(static_cast<int32_t>(at * heads + h));
  }
  const Tensor members = Tensor::from(which, {static_cast<int64_t>(valid.size()), heads});
  std::vector<AttentionPattern> patterns;
  for (int64_t layer = 0; layer < config_.n_layer; ++layer) {
    std::vector<BlockTable> tables;
    for (const int64_t l : distinct) {
      for (int64_t h = 0; h < heads; ++h) tables.push_back(table(layer, h, l));
    }
    patterns.push_back(patterns::block_lists(
        length, tables, members, fmt::format("bigbird({}, {})", config_.block, config_.n_random)));
  }
  return patterns;
}

Given BigBird::given(const EncoderInputs& in) const {
  const int64_t length = in.tokens.dim(1);
  std::vector<int64_t> valid{length};
  if (in.lengths && config_.global_last == GlobalLast::real) {
    valid = to_device(in.lengths, {}).to_vector<int64_t>();
    for (int64_t& l : valid) l = std::clamp<int64_t>(l, 0, length);
  }
  Given seen;
  {
    const std::lock_guard lock(layouts_->mutex);
    auto& entries = layouts_->entries;
    const auto known = std::find_if(entries.begin(), entries.end(), [&](const auto& e) {
      return e.length == length && e.valid == valid;
    });
    if (known == entries.end()) {
      if (entries.size() == Layouts::kept) entries.erase(entries.begin());
      entries.push_back({length, valid, make_patterns(length, valid)});
      seen.layer_patterns = entries.back().patterns;
    } else {
      seen.layer_patterns = known->patterns;
    }
  }
  for (AttentionPattern& p : seen.layer_patterns) p = with_lengths(p, in.lengths, in.lengths);
  return seen;
}

BigBirdConfig bigbird_preset(std::string_view name) {
  BigBirdConfig c;
  c.activation = Activation::gelu_tanh;
  c.emb_dropout_first = true;
  if (name == "small") {
    // Not what the paper has: few steps learn more so; docs/bigbird.md.
    c.n_max = 1024;
    c.block = 16;
    c.dropout = 0;
    c.init_std = 0.05;
    c.position_init = PositionInit::sinusoid;
    return c;
  }
  if (name == "tiny") {
    c.vocab = 23;
    c.n_layer = c.n_head = 2;
    c.d_model = 16;
    c.d_ff = 32;
    c.n_max = 64;
    c.block = 4;
    c.n_random = 2;
    c.dropout = 0;
    return c;
  }
  c.vocab = 50'358;
  c.mask_id = 67;  // of the released vocabulary
  c.token_types = 2;
  c.n_layer = c.n_head = 12;
  c.d_model = 768;
  c.d_ff = 3072;
  c.n_max = 4096;
  if (name == "base") return c;
  if (name == "dna") {
    c.vocab = 32'000;
    c.mask_id = -1;
    return c;
  }
  require(name == "large", kName, "there is no preset \"{}\"", name);
  c.n_layer = 24;
  c.n_head = 16;
  c.d_model = 1024;
  c.d_ff = 4096;
  return c;
}

const ModelEntry& bigbird_entry() {
  static const ModelEntry entry{
      kName, "encoder over blocks: window, random and global ones; linear in the length", presets,
      make};
  return entry;
}

}  // namespace longspan
