// BlockBERT, Qiu et al. 2020 (1911.02972): BERT with its attention matrix cut into n x n blocks.
// Each head keeps one block in every row of blocks. Heads that keep the diagonal attend locally,
// heads that keep a shifted diagonal attend to distant blocks. It adds no parameters.
//
//   pi^(s)(k) = (k + s) mod n      heads 0 .. c_0 - 1 take shift 0, the next c_1 shift 1, ...
//
// The paper writes the formula with indices from 1, floor((i - 1) n / N + 1), and assumes n | N;
// floor(i n / L) from 0 is the same and works for any length.

#include "models/blockbert/blockbert.h"

#include <fmt/format.h>

#include <numeric>

#include "core/divide.h"
#include "models/materialized_blocks.h"
#include "models/model_spec.h"
#include "ops/patterns/blocks.h"

namespace longspan {
namespace {

constexpr const char* kBlockBert = "blockbert";

/// 131,072 tokens a batch (sec. 4.1); peak and warm-up are those of RoBERTa base.
constexpr TrainingDefaults blockbert_of_length(int64_t length) {
  return {.length = length,
          .batch = 131'072 / length,
          .steps = 500'000,
          .lr = 6e-4,
          .warmup = 10'000,
          .lr_floor = 0,
          .clip = 1,
          .beta2 = 0.98,
          .weight_decay = 0.01};
}

constexpr Preset blockbert_presets[] = {
    // Differs from the paper because it learns more in few steps; docs/blockbert.md.
    {"small",
     "4 layers of 128, 2 blocks, heads 3:1; masked bytes in minutes",
     "",
     "dropout=0 init_std=0.05 position_init=sinusoid",
     {.length = 512, .batch = 4, .steps = 1000, .lr = 2e-3, .warmup = 100, .clip = 1}},
    {"tiny",
     "2 layers of 16, 3 blocks, heads 2:1:1, 23 tokens; for tests",
     "",
     "vocab=23 n_layer=2 d_model=16 d_ff=32 n_max=64 n_block=3 heads_per_shift=2,1,1 dropout=0",
     {.length = 22, .batch = 4, .steps = 200}},
    {"needle",
     "2 layers of 64, 2 blocks, heads 3:1, answers as spans; generated questions",
     "small",
     "vocab=64 n_layer=2 d_model=64 d_ff=256 n_max=64 token_types=2 mlm_head=false span_head=true",
     {.length = 64, .batch = 32, .steps = 1500}},
    {"base512", "12 layers of 768, length 512, 2 blocks, heads 10:2", "",
     "vocab=30522 n_layer=12 n_head=12 d_model=768 d_ff=3072 heads_per_shift=10,2",
     blockbert_of_length(512)},
    {"base512_3", "the same with 3 blocks, heads 10:1:1", "base512",
     "n_block=3 heads_per_shift=10,1,1", blockbert_of_length(512)},
    {"base1024", "12 layers of 768, length 1024, 2 blocks, heads 11:1", "base512",
     "n_max=1024 heads_per_shift=11,1", blockbert_of_length(1024)},
    {"base1024_3", "the same with 3 blocks, heads 10:1:1", "base1024",
     "n_block=3 heads_per_shift=10,1,1", blockbert_of_length(1024)},
    {"sparse512", "BERT with fixed factorised attention, 12 layers of 768, length 512", "base512",
     "heads_per_shift= pattern=fixed", blockbert_of_length(512)},
    {"sparse1024", "the same, length 1024", "sparse512", "n_max=1024", blockbert_of_length(1024)},
    {"finetune", "12 layers of 768, length 1024, 3 blocks, heads 8:2:2, answers as spans",
     "base1024_3", "heads_per_shift=8,2,2 span_head=true", blockbert_of_length(1024)},
};

std::unique_ptr<ModelSpec> blockbert_spec(std::string_view preset) {
  return preset_spec<BlockBert, BlockBertConfig>(kBlockBert, blockbert_presets, preset);
}

std::vector<std::unique_ptr<Layer>> attention_of(const BlockBertConfig& c,
                                                 std::vector<std::unique_ptr<Layer>> heads) {
  if (c.attention_impl == AttentionImpl::fused) return heads;
  const float p = or_default(c.dropout_attn, c.dropout);
  for (std::unique_ptr<Layer>& layer : heads) {
    layer = std::make_unique<MaterializedBlocks>(dynamic_cast<const MultiHead&>(*layer),
                                                 block_permutations(c), c.pad_to_multiple, p);
  }
  return heads;
}

}  // namespace

std::vector<std::vector<int64_t>> block_permutations(const BlockBertConfig& c) {
  const int64_t n = c.n_block;
  require(n >= 1 && n <= c.n_max, kBlockBert, "n_block is {}; expected 1 to n_max = {}", n,
          c.n_max);
  check_fields(kBlockBert, c);
  std::vector<std::vector<int64_t>> pi;
  if (!c.permutations.empty()) {
    require(static_cast<int64_t>(c.permutations.size()) == c.n_head * n, kBlockBert,
            "permutations has {} numbers; expected n_block = {} for each of n_head = {}",
            c.permutations.size(), n, c.n_head);
    for (auto p = c.permutations.begin(); p != c.permutations.end(); p += n) {
      pi.emplace_back(p, p + n);
    }
    return pi;
  }
  std::vector<int64_t> counts = c.heads_per_shift;
  if (counts.empty()) counts = {c.n_head};
  require(static_cast<int64_t>(counts.size()) <= n, kBlockBert,
          "heads_per_shift has {} shifts; n_block = {} allows at most that many", counts.size(), n);
  const int64_t heads = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  require(heads == c.n_head, kBlockBert, "heads_per_shift {} adds up to {}; expected n_head = {}",
          fmt::join(counts, ":"), heads, c.n_head);
  for (size_t shift = 0; shift < counts.size(); ++shift) {
    std::vector<int64_t> shifted;
    for (int64_t k = 0; k < n; ++k) shifted.push_back((k + static_cast<int64_t>(shift)) % n);
    pi.insert(pi.end(), static_cast<size_t>(counts[shift]), shifted);
  }
  return pi;
}

BlockBert::BlockBert(const BlockBertConfig& config, const Init& init)
    : Encoder(kBlockBert, config, attention_of(config, multi_heads(kBlockBert, config, init)),
              init),
      config_(config),
      permutations_(block_permutations(config)) {
  patterns::permuted_blocks(config.n_block, permutations_);  // throws unless all are permutations
  require(config.columns <= config.stride, kBlockBert, "columns is {}; expected 1 to stride = {}",
          config.columns, config.stride);
  require(
      config.pattern == BlockBertPattern::blocks || config.attention_impl == AttentionImpl::fused,
      kBlockBert, "pattern = fixed has no materialized attention; expected attention_impl = fused");
}

LayerContext BlockBert::layer_context(const EncoderInputs& in, Pass /*pass*/) const {
  const int64_t length = in.tokens.dim(1), unit = config_.pad_to_multiple;
  const int64_t padded = unit > 0 ? round_up(length, unit) : length;
  LayerContext seen;
  seen.pattern = config_.pattern == BlockBertPattern::fixed
                     ? patterns::block_lists(
                           length, {fixed_blocks(length, config_.stride, config_.columns)}, {},
                           fmt::format("fixed both ways({}, {})", config_.stride, config_.columns))
                     : patterns::permuted_blocks(length, permutations_, padded);
  seen.pattern = seen_in(seen.pattern, in);
  return seen;
}

BlockBertConfig blockbert_preset(std::string_view name) {
  return preset_of<BlockBertConfig>(kBlockBert, blockbert_presets, name);
}

const ModelEntry& blockbert_entry() {
  static const ModelEntry entry{
      kBlockBert, "encoder whose heads each see one block of keys from each block of queries",
      blockbert_presets, blockbert_spec};
  return entry;
}

}  // namespace longspan
