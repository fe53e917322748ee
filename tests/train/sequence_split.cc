// Sequences that several processes compute together: exchanges of rows and heads, and every model
// that splits them, against the model in one process.
#include "core/ranks/sequence_split.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <sstream>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "models/all/registry.h"
#include "models/evaluate.h"
#include "models/transformer/encoder_decoder.h"
#include "nn/attention/head_share.h"
#include "nn/segment.h"
#include "nn/stack.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/exchange.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/harness/rank_threads.h"
#include "train/config.h"

namespace longspan::test {
namespace {

TEST(SequenceSplit, DealsRowsInRunsOfNearlyEqualLength) {
  for (const int64_t all : {2, 3, 7, 8}) {
    int64_t next = 0;
    for (int s = 0; s < 2; ++s) {
      const auto group = Communicator::rehearsed(s, 2);
      const SequenceSplit split(*group);
      const auto [first, count] = split.rows(all);
      EXPECT_EQ(first, next);
      EXPECT_GE(count, all / 2);
      EXPECT_LE(count, (all + 1) / 2);
      next = first + count;
    }
    EXPECT_EQ(next, all);
  }
  const auto group = Communicator::rehearsed(1, 3);
  const SequenceSplit split(*group);
  EXPECT_EQ(split.heads(6, "model").first, 2);
  EXPECT_EQ(
      message_of<ValueError>([&] { split.heads(4, "model"); }),
      "model: 4 heads cannot be split among 3 processes; set ranks.sequence to a divisor of 4");
  EXPECT_EQ(split.rows(2).count, 1);
  EXPECT_EQ(split.rows(1, 0).count, 0);
}

TEST(SequenceSplit, GroupsDoNotMixMessages) {
  on_rank_threads(4, [](Communicator& ranks) {
    const auto group = ranks.group(2);
    EXPECT_EQ(group->size(), 2);
    EXPECT_EQ(group->rank(), ranks.rank() % 2);
    // Exchanges of all ranks and of groups, interleaved.
    for (int turn = 0; turn < 50; ++turn) {
      const std::string mine = std::to_string(100 * turn + ranks.rank());
      const std::vector<std::string> near = group->gather(mine, "near");
      const std::vector<std::string> all = ranks.gather(mine, "all");
      for (int r = 0; r < 4; ++r) {
        EXPECT_EQ(all[static_cast<size_t>(r)], std::to_string(100 * turn + r));
      }
      for (int r = 0; r < 2; ++r) {
        EXPECT_EQ(near[static_cast<size_t>(r)],
                  std::to_string(100 * turn + ranks.rank() / 2 * 2 + r));
      }
    }
  });
  on_rank_threads(2, [](Communicator& ranks) {  // two divisions do not mix either
    const auto one = ranks.group(2), other = ranks.group(2);
    // Posted in another order by each rank.
    int64_t from_one = 0, from_other = 0;
    const int64_t to_one = 1 + ranks.rank(), to_other = 10 + ranks.rank();
    const int peer = 1 - ranks.rank();
    const auto start = [&](Communicator& group, const int64_t& mine, int64_t& theirs) {
      const Communicator::Send send{peer, &mine, sizeof mine};
      const Communicator::Receive receive{peer, &theirs, sizeof theirs};
      return group.start({&send, 1}, {&receive, 1}, "a number");
    };
    auto first =
        ranks.rank() == 0 ? start(*one, to_one, from_one) : start(*other, to_other, from_other);
    auto second =
        ranks.rank() == 0 ? start(*other, to_other, from_other) : start(*one, to_one, from_one);
    one->wait(first);
    one->wait(second);
    EXPECT_EQ(from_one, 1 + peer);
    EXPECT_EQ(from_other, 10 + peer);
    EXPECT_THROW(one->group(1), ValueError);
  });
  const auto three = Communicator::rehearsed(0, 3);
  EXPECT_EQ(message_of<ValueError>([&] { three->group(2); }),
            "ranks: 3 processes cannot be divided into groups of 2; start a multiple of it");
}

/// x [1, H, L, d] or [1, L, D] with values of its own in each place.
Tensor distinct(const Shape& shape, DType dtype = DType::f64) {
  return uniform(shape, Generator{7}.fork(static_cast<uint64_t>(numel(shape))), -1, 1, dtype);
}

TEST(Exchange, MovesRowsToHeadsAndBack) {
  for (const int size : {1, 2, 3}) {
    for (const int64_t rows : {3, 7, 12}) {
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64}) {
        SCOPED_TRACE(fmt::format("{} processes, {} rows, {}", size, rows, name_of(dtype)));
        const Tensor all = cast(mul(distinct({1, rows, 6, 5}), 1000), dtype);
        const Tensor heads = transpose(all, 1, 2);  // [1, 6, L, 5], strided as attention has it
        on_rank_threads(size, [&](Communicator& ranks) {
          const SequenceSplit split(ranks);
          const auto [first, count] = split.rows(rows);
          const auto own = split.heads(6, "test");
          const Tensor there = rows_to_heads(narrow(heads, 2, first, count), split, rows);
          EXPECT_TRUE(same_bits(there, narrow(heads, 1, own.first, own.count)));
          EXPECT_TRUE(transpose(there, 1, 2).contiguous());
          const Tensor back = heads_to_rows(there, split);
          EXPECT_TRUE(same_bits(back, narrow(heads, 2, first, count)));
          EXPECT_TRUE(same_bits(heads_to_rows(contiguous(there), split), back));
          if (dtype == DType::i64) return;
          const Tensor flat = flatten(all, 2, 3);
          EXPECT_TRUE(same_bits(rows_of_all(narrow(flat, 1, first, count), split, rows), flat));
        });
      }
    }
  }
}

/// The gradient of a leaf in one process, and the same of its rows in each of several.
void expect_gradients_of(int size, int64_t rows, const std::function<Tensor(const Tensor&)>& whole,
                         const std::function<Tensor(const Tensor&, const SequenceSplit&)>& part) {
  Tensor x = distinct({1, 6, rows, 2});
  set_requires_grad(x);
  backward(whole(x));
  const Tensor expected = grad(x);
  on_rank_threads(size, [&](Communicator& ranks) {
    const SequenceSplit split(ranks);
    const auto [first, count] = split.rows(rows);
    Tensor own = contiguous(narrow(x.detach(), 2, first, count));
    set_requires_grad(own);
    backward(part(own, split));
    EXPECT_LT(distance(grad(own), narrow(expected, 2, first, count)),
              1e-14 * max(abs(flatten(expected)), 0).values.item());
  });
}

TEST(Exchange, GradientsAreThoseOfOneProcess) {
  for (const int size : {2, 3}) {
    for (const int64_t rows : {4, 7}) {
      const Tensor w = distinct({1, 6, rows, 2});
      expect_gradients_of(
          size, rows, [&](const Tensor& x) { return sum(mul(exp(x), w)); },
          [&](const Tensor& x, const SequenceSplit& split) {
            const auto own = split.heads(6, "test");
            const Tensor y = exp(rows_to_heads(x, split, rows));
            return sum(mul(y, narrow(w, 1, own.first, own.count)));
          });
      expect_gradients_of(
          size, rows, [&](const Tensor& x) { return sum(mul(exp(mul(x, x)), w)); },
          [&](const Tensor& x, const SequenceSplit& split) {
            const Tensor y = rows_to_heads(x, split, rows);
            const Tensor z = exp(heads_to_rows(mul(y, y), split));
            const auto [first, count] = split.rows(rows);
            return sum(mul(z, narrow(w, 2, first, count)));
          });
      // Each process reads all rows, and its loss is a share.
      expect_gradients_of(
          size, rows, [&](const Tensor& x) { return sum(exp(mul(x, sum(x, {2}, true)))); },
          [&](const Tensor& x, const SequenceSplit& split) {
            const Tensor flat = flatten(transpose(x, 1, 2), 2, 3);
            const Tensor all = rows_of_all(flat, split, rows);
            const Tensor total = sum(unflatten(all, 2, 6, 2), {1}, true);  // [1, 1, 6, 2]
            return sum(exp(mul(transpose(x, 1, 2), total)));
          });
    }
  }
}

TEST(Exchange, RefusesWhatItCannotSplit) {
  const auto group = Communicator::rehearsed(0, 2);
  const SequenceSplit split(*group);
  EXPECT_THROW(rows_to_heads(zeros({2, 2, 3, 1}), split, 6), ShapeError);
  EXPECT_THROW(rows_to_heads(zeros({1, 2, 3, 1}), split, 8), ShapeError);
  EXPECT_THROW(rows_to_heads(zeros({1, 3, 3, 1}), split, 6), ValueError);
  EXPECT_THROW(heads_to_rows(zeros({2, 3, 1}), split), ShapeError);
  EXPECT_THROW(rows_of_all(zeros({1, 4, 1}), split, 6), ShapeError);
}

/// The number of processes that the tiny model allows, 0 if it splits no sequence.
int processes_for(const LanguageModel& model) {
  const auto* const splits = ask<SplitsSequences>(model);
  if (splits == nullptr) return 0;
  int64_t common = 0;
  for (const int64_t heads : splits->divided_heads()) common = std::gcd(common, heads);
  for (int n = 2; n <= common; ++n) {
    if (common % n == 0) return n;
  }
  return 0;
}

/// A model of the registry, with drop-out.
struct Tiny {
  Tiny(const ModelEntry& entry, DType dtype, const Settings& options) {
    const auto spec = entry.make("tiny");
    set_fields(*spec, {{"dropout", 0.1, "test"}});
    set_fields(*spec, options);
    model = spec->build(Init{.gen = Generator{1}, .dtype = dtype});
    length = std::min({spec->defaults().length, model->max_length(), max_input_length(*model)});
    parameters = named_parameters(*model);
  }
  std::unique_ptr<LanguageModel> model;
  int64_t length = 0;
  TensorList parameters;
};

struct Passed {
  double loss = 0;
  Tensor logits;      // [1, n, V] of the rows of this process; undefined for an encoder-decoder
  TensorList memory;  // after two segments
  std::vector<Statistics> statistics;
  std::vector<Tensor> gradients;
};

/// Targets that are tokens, of which those from `until` on do not count.
Tensor targets_of(const Tensor& tokens, int64_t until) {
  std::vector<int64_t> ids = tokens.to_vector<int64_t>();
  for (size_t i = static_cast<size_t>(until); i < ids.size(); ++i) ids[i] = ignored_target;
  return Tensor::from(ids, tokens.shape());
}

/// Two segments of training.
Passed passed(const Tiny& tiny, int64_t length, int64_t until, const SequenceSplit* split) {
  const LanguageModel& model = *tiny.model;
  Passed result;
  SegmentMemory memory = empty_memory(model, 1);
  Pass pass{.training = true, .gen = Generator{2}};
  pass.split = split;
  for (uint64_t segment = 0; segment < 2; ++segment) {
    const Tensor tokens = some_tokens(1, length, model.vocab(), 10 + segment);
    const Tensor targets = targets_of(tokens, until);
    LanguageModel::Losses losses;
    if (model.objective() == Objective::sequence) {
      const SourceTokens source{some_tokens(1, length, model.vocab(), 50 + segment)};
      losses = need<WritesSequences>(model).sequence_loss(source, tokens, targets, pass);
    } else {
      losses = model.loss(tokens, targets, memory, pass);
      memory = losses.memory;
      const NoGrad off;
      if (segment == 0) result.logits = model.logits(tokens, pass);
    }
    add_statistics(result.statistics, std::move(losses.statistics));
    const Tensor total = losses.total();
    result.loss += total.item();
    backward(total);
  }
  result.memory = named_tensors(memory);
  for (const NamedTensor& p : tiny.parameters) {
    result.gradients.push_back(grad(p.tensor) ? contiguous(grad(p.tensor)) : Tensor{});
    set_grad(p.tensor, {});
  }
  return result;
}

/// The largest difference of gradients, over the largest gradient of each parameter.
double difference(const std::vector<Tensor>& expected, const std::vector<std::vector<Tensor>>& of,
                  const TensorList& parameters) {
  double most = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    Tensor sum;
    for (const std::vector<Tensor>& part : of) {
      if (part[i]) sum = sum ? add(sum, part[i]) : part[i];
    }
    EXPECT_EQ(static_cast<bool>(sum), static_cast<bool>(expected[i])) << parameters[i].name;
    if (!sum || !expected[i] || sum.numel() == 0) continue;
    const double size = std::max(max(abs(flatten(expected[i])), 0).values.item(), 1e-3);
    const double off = distance(sum, expected[i]) / size;
    most = std::max(most, off);
  }
  return most;
}

void expect_same(const ModelEntry& entry, DType dtype, const Settings& options, int64_t extra,
                 bool some_lack_targets, double tolerance = 1e-6) {
  const Tiny whole(entry, dtype, options);
  const int size = processes_for(*whole.model);
  if (size == 0) return;
  const int64_t length = whole.length + extra;
  SCOPED_TRACE(
      fmt::format("{}, {}, {} processes, {} tokens", entry.name, name_of(dtype), size, length));
  const int64_t until = some_lack_targets ? length / size : length;
  const Passed alone = passed(whole, length, until, nullptr);
  std::vector<std::vector<Tensor>> gradients(static_cast<size_t>(size));
  double loss = 0;
  std::vector<Tensor> logits(static_cast<size_t>(size));  // of the rows of each process
  std::vector<std::vector<Tensor>> statistics;            // of each process
  std::mutex mutex;
  on_rank_threads(size, [&](Communicator& ranks) {
    const Tiny tiny(entry, dtype, options);
    const SequenceSplit split(ranks);
    const Passed own = passed(tiny, length, until, &split);
    const std::lock_guard lock(mutex);
    logits[static_cast<size_t>(ranks.rank())] = own.logits;
    ASSERT_EQ(own.memory.size(), alone.memory.size());
    for (size_t i = 0; i < own.memory.size(); ++i) {
      EXPECT_TRUE(same_bits(own.memory[i].tensor, alone.memory[i].tensor)) << own.memory[i].name;
    }
    loss += own.loss;
    statistics.emplace_back();
    for (const Statistics& s : own.statistics) {
      statistics.back().insert(statistics.back().end(), s.sums.begin(), s.sums.end());
    }
    gradients[static_cast<size_t>(ranks.rank())] = own.gradients;
  });
  if (alone.logits) {
    EXPECT_TRUE(same_bits(concat(logits, 1), alone.logits)) << "logits";
  }
  size_t at = 0;
  for (const Statistics& s : alone.statistics) {
    for (const Tensor& expected : s.sums) {
      Tensor sum = statistics[0].at(at);
      for (size_t r = 1; r < statistics.size(); ++r) sum = add(sum, statistics[r].at(at));
      EXPECT_TRUE(same_bits(sum, expected)) << "statistics " << at;
      ++at;
    }
  }
  EXPECT_EQ(at, statistics[0].size());
  EXPECT_NEAR(loss, alone.loss, (dtype == DType::f64 ? 1e-13 : 2e-6) * std::abs(alone.loss));
  EXPECT_LT(difference(alone.gradients, gradients, whole.parameters),
            dtype == DType::f64 ? 1e-12 : tolerance);
}

TEST(SplitModels, HaveTheBitsAndTheGradientsOfOneProcess) {
  std::string split;
  for (const ModelEntry& entry : models()) {
    for (const DType dtype : {DType::f64, DType::f32}) expect_same(entry, dtype, {}, 0, false);
    if (processes_for(*Tiny(entry, DType::f32, {}).model) > 0)
      split += std::string(entry.name) + " ";
  }
  EXPECT_EQ(split,
            "transformer local_transformer sparse_transformer blockbert bigbird linformer "
            "longformer longformer_lm led bigbird_pegasus reformer transformer_xl adaptive_span "
            "performer bp_transformer ");
}

TEST(SplitModels, SequencesMayBeShorterThanTheGroup) {
  for (const ModelEntry& entry : models()) {
    const Tiny tiny(entry, DType::f64, {});
    const int size = processes_for(*tiny.model);
    for (int64_t length = 1; length < size; ++length) {
      expect_same(entry, DType::f64, {}, length - tiny.length, false);
    }
  }
}

TEST(SplitModels, AShardMayHaveNoTarget) {
  for (const ModelEntry& entry : models()) expect_same(entry, DType::f64, {}, 0, true);
}

TEST(SplitModels, OptionsThatMixRowsSplitNothing) {
  for (const auto& [name, option] : {std::pair{"blockbert", "attention_impl=materialized"},
                                     {"linformer", "projection=conv"},
                                     {"reformer", "whole_chunks=true"},
                                     {"transformer", "half_loss=true"}}) {
    const auto entry = std::find_if(models().begin(), models().end(),
                                    [&](const ModelEntry& e) { return e.name == name; });
    EXPECT_GT(processes_for(*Tiny(*entry, DType::f32, {}).model), 0) << name;
    const Tiny mixing(*entry, DType::f32, {parse_setting(option, "test")});
    EXPECT_EQ(processes_for(*mixing.model), 0) << name << " " << option;
  }
}

TEST(SplitModels, LayersThatDoNotSayThatTheySplitRefuseIt) {
  struct Mean : Layer {  // reads all rows
    Output forward(const Tensor& x, const LayerContext&, Pass) const override {
      return add(x, mean(x, {1}, true));
    }
    void visit(Visitor&) override {}
  };
  const auto group = Communicator::rehearsed(0, 2);
  const SequenceSplit split(*group);
  std::vector<Branch> branches;
  branches.push_back(
      {"mean", Normalization(NormKind::layer, 4, 1e-5, Init{}), std::make_unique<Mean>()});
  const Block block(NormPlace::pre, 0, std::move(branches));
  const Tensor x = Tensor::zeros({1, 8, 4});
  EXPECT_NO_THROW(block.forward(x, {}, Pass{}));
  EXPECT_EQ(message_of<NotImplemented>([&] { block.forward(x, {}, Pass{.split = &split}); }),
            "ranks: a layer of this model computes whole sequences, which processes do not split; "
            "leave out Pass::split (set ranks.sequence to 1)\n  in mean");
}

TEST(SplitModels, HeadsThatReadAllRowsRefuseIt) {
  const auto group = Communicator::rehearsed(0, 2);
  const SequenceSplit split(*group);
  Pass pass;
  pass.split = &split;
  const auto refused = [&](const char* name, const char* head, const auto& call) {
    const auto entry = std::find_if(models().begin(), models().end(),
                                    [&](const ModelEntry& e) { return e.name == name; });
    const Tiny tiny(*entry, DType::f32, {parse_setting(head, "test")});
    const EncoderInputs in{.tokens = some_tokens(1, 8, tiny.model->vocab())};
    EXPECT_TRUE(message_of<NotImplemented>([&] {
                  call(*tiny.model, in);
                }).ends_with("leave out Pass::split (ranks.sequence)"));
  };
  const auto classes = [&](const LanguageModel& m, const EncoderInputs& in) {
    need<ClassifiesSequences>(m).class_logits(in, pass);
  };
  const auto tags = [&](const LanguageModel& m, const EncoderInputs& in) {
    need<TagsTokens>(m).tag_logits(in, pass);
  };
  const auto spans = [&](const LanguageModel& m, const EncoderInputs& in) {
    need<FindsSpans>(m).span_logits(in, pass);
  };
  refused("blockbert", "classes=2", classes);
  refused("blockbert", "tags=2", tags);
  refused("bigbird", "span_head=true", spans);
  refused("transformer", "classes=2", classes);
  refused("transformer", "tags=2", tags);
  refused("transformer", "span_head=true", spans);
}

/// Settings of "key=value key=value".
Settings settings_of(const std::string& text) {
  Settings all;
  std::istringstream words(text);
  for (std::string word; words >> word;) all.push_back(parse_setting(word, "test"));
  return all;
}

void expect_same_with(const char* model, const std::string& text, int64_t extra = 0) {
  SCOPED_TRACE(text);
  const auto entry = std::find_if(models().begin(), models().end(),
                                  [&](const ModelEntry& e) { return e.name == model; });
  ASSERT_NE(entry, models().end()) << model;
  const Settings options = settings_of(text);
  ASSERT_GT(processes_for(*Tiny(*entry, DType::f64, options).model), 0);
  for (const DType dtype : {DType::f64, DType::f32}) {
    expect_same(*entry, dtype, options, extra, false);
  }
}

TEST(SplitModels, HoldWithOptions) {
  for (const char* options :
       {"wiring=encoder", "wiring=encoder_decoder", "wiring=encoder_decoder source_tables=true",
        "positions=shaw shaw_per_head=true", "positions=learned_per_layer", "positions=sinusoid",
        "local=exact window=3", "local=block window=3", "alpha=1.5 positions=learned",
        "learn_alpha=true alpha=1.5 positions=learned", "share_qk=true", "dropout_token=0.2",
        "label_smoothing=0.1", "wiring=encoder mlm_head=true dropout_ffn_act=0.1"}) {
    expect_same_with("transformer", options, -1);
  }
  // Heads of unequal cost: sets, sub-blocks and dilations of their own.
  for (const char* options :
       {"integration=multihead index_sets=block,summary",
        "integration=merged index_sets=block,summary",
        "integration=multihead index_sets=local,dense", "integration=interleave",
        "pos_before_shift=true", "begin_vector=true"}) {
    expect_same_with("sparse_transformer", options, -1);
  }
  for (const char* options :
       {"sharing=none", "sharing=kv", "sharing=layerwise", "projection=mean", "projection=max",
        "projection_order=key", "projection_order=key sharing=none",
        "projection_order=key projection=max",
        "projection_order=key projection=conv sharing=none"}) {
    expect_same_with("linformer", options, -1);
  }
  for (const char* options : {"exact_up_to=0", "exact_up_to=0 projection_per_head=true",
                              "exact_up_to=0 features=relu", "qk_norm=true", "exact_up_to=1000"}) {
    expect_same_with("performer", options, -1);
  }
  for (const char* options : {"dynamic=true", "dynamic=true span_scope=layer", "span_scope=layer",
                              "persistent=3", "trim=2 span_penalty=0.1"}) {
    expect_same_with("adaptive_span", options);
  }
  for (const char* options :
       {"untie_biases=true", "clamp=3", "phantom_zero_memory=true", "window=4"}) {
    expect_same_with("transformer_xl", options, 1);
  }
  for (const char* options :
       {"local_heads=2 routing_heads=2", "local_heads=2 routing_heads=6 share_qk=false",
        "local_heads=0 routing_heads=2", "local_heads=2 routing_heads=2 norm_qk=unit_keys",
        "local_heads=2 routing_heads=2 select=argmax_recent norm_qk=unit_keys",
        "local_heads=2 routing_heads=2 mask_self=true",
        "local_heads=2 routing_heads=2 mask_self=true select=argmax_recent norm_qk=unit_keys"}) {
    expect_same_with("routing", options);
  }
  expect_same_with("longformer", "globals=first", -2);
  expect_same_with("longformer", "globals=first dilation=2 dilated_heads=1");
  expect_same_with("longformer_lm", "dilation=2 dilated_heads=1");
  // The gradients are rounded to bf16 after they have been divided by other numbers of targets.
  expect_same(models().front(), DType::f32, settings_of("precision=bf16"), 0, false, 0x1p-6);
  expect_same_with("reformer", "rounds=3 dropout_attn=0.1");
}

TEST(SplitModels, HoldUnderEveryPolicy) {
  for (const ModelEntry& entry : models()) {
    for (const char* policy :
         {"checkpoint", "checkpoint:2", "lean", "selective", "reversible", "reversible:exact"}) {
      SCOPED_TRACE(policy);
      expect_same(entry, DType::f64, {{"memory", policy, "test"}}, 0, false);
    }
    expect_same(entry, DType::f64, {{"chunks", int64_t{3}, "test"}}, 0, false);
  }
}

}  // namespace
}  // namespace longspan::test
