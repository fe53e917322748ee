#include "tests/models/etc_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "models/bigbird/bigbird_blocks.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/shape.h"
#include "ops/softmax.h"
#include "tests/harness/model_info.h"

namespace longspan::test {
namespace {

int64_t get(const std::vector<int64_t>& x, int64_t row, int64_t columns, int64_t i,
            int64_t otherwise) {
  return x.empty() ? otherwise : x[static_cast<size_t>(row * columns + i)];
}

Tensor tensor(const std::vector<int64_t>& x, const Shape& shape) {
  return x.empty() ? Tensor{} : Tensor::from(x, shape);
}

/// Looks up parameters by name.
class Parameters {
 public:
  explicit Parameters(Module& model) {
    for (const NamedTensor& p : named_parameters(model)) all_[p.name] = p.tensor;
  }
  bool has(const std::string& name) const { return all_.contains(name); }
  const Tensor& operator[](const std::string& name) const { return all_.at(name); }
  Tensor apply(const std::string& name, const Tensor& x) const {
    return linear(x, all_.at(name + ".weight"), all_.at(name + ".bias"));
  }
  Tensor norm(const std::string& name, const Tensor& x, double eps) const {
    return layer_norm(x, all_.at(name + ".weight"), all_.at(name + ".bias"), eps);
  }

 private:
  std::map<std::string, Tensor> all_;
};

struct DenseEtc {
  const EtcConfig& c;
  const Parameters& p;
  const Links& links;

  Tensor heads(const Tensor& x) const {
    return contiguous(transpose(unflatten(x, -1, c.n_head, c.d_model / c.n_head), 1, 2));
  }
  std::string first(const std::string& at, std::initializer_list<const char*> names) const {
    for (const char* n : names) {
      if (p.has(at + n + ".weight")) return at + n;
    }
    return {};
  }

  int64_t block() const { return std::max<int64_t>(c.block > 0 ? c.block : c.radius, 1); }
  /// Returns the blocks that long query i draws. It draws only from blocks with no token in reach
  /// of any token of its own block.
  std::vector<int64_t> random_of(int64_t layer, int64_t head, int64_t i) const {
    if (c.n_random == 0) return {};
    const int64_t b = block(), n = (links.n_l + b - 1) / b, row = i / b;
    std::vector<BlockRange> legal;
    for (int64_t k = 0; k < n; ++k) {
      const int64_t gap = k > row ? k * b - (row * b + b - 1) : row * b - (k * b + b - 1);
      if (k != row && gap > c.radius) legal.push_back({k, k + 1});
    }
    return draw_blocks(legal, c.n_random, c.random_seed, layer, head, n, row);
  }

  /// Computes one side: concatenates all its keys, with a label for every pair.
  Tensor side(int64_t layer, const std::string& at, bool global, const Tensor& x, const Tensor& l,
              const Tensor& g) const {
    const std::string name = global ? "global" : "long";
    const LinkPiece on_l = global ? LinkPiece::g2l : LinkPiece::l2l,
                    on_g = global ? LinkPiece::g2g : LinkPiece::l2g;
    const auto pieces = [&](const char* part, bool of_long) {
      if (c.share_qkv) return std::string("l2l") + part;
      if (c.share_kv) return std::string(global ? "g2g" : "l2l") + part;
      return std::string(global ? "g2" : "l2") + (of_long ? "l" : "g") + part;
    };
    const Tensor q = heads(p.apply(at + (c.share_qkv ? "long" : name) + ".q", x));
    const auto all = [&](const char* part) {
      return heads(
          concat({p.apply(at + pieces(part, true), l), p.apply(at + pieces(part, false), g)}, 1));
    };
    const Tensor k = all(".k"), v = all(".v");  // [B, H, n_l + n_g, d]
    const int64_t n = x.dim(1), n_l = links.n_l, keys = n_l + links.n_g;
    std::vector<int64_t> ids;
    std::vector<uint8_t> visible;
    EtcConfig wide = c;  // labels do not depend on visibility
    wide.radius = n_l;
    for (int64_t b = 0; b < links.batch; ++b) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < keys; ++j) {
          const int64_t id = j < n_l ? label_of(wide, links, on_l, b, i, j)
                                     : label_of(c, links, on_g, b, i, j - n_l);
          ids.push_back(id < 0 ? 0 : id);
        }
      }
      for (int64_t h = 0; h < c.n_head; ++h) {
        for (int64_t i = 0; i < n; ++i) {
          const std::vector<int64_t> random =
              global ? std::vector<int64_t>{} : random_of(layer, h, i);
          for (int64_t j = 0; j < keys; ++j) {
            const bool drawn = j < n_l && std::count(random.begin(), random.end(), j / block()) > 0;
            const int64_t id = j < n_l ? label_of(drawn ? wide : c, links, on_l, b, i, j)
                                       : label_of(c, links, on_g, b, i, j - n_l);
            visible.push_back(id < 0 ? 0 : 1);
          }
        }
      }
    }
    Tensor s = matmul(q, transpose(k));  // [B, H, n, keys]
    const Shape shape = s.shape();
    if (c.labels) {
      const Tensor a = p[at + name + ".relation_key"];           // [R, H, d]
      Tensor qa = matmul(q, contiguous(permute(a, {1, 2, 0})));  // [B, H, n, R]
      if (c.rel_bias) {
        qa = add(qa, unsqueeze(contiguous(transpose(p[at + name + ".relation_bias"])), 1));
      }
      const Tensor id = Tensor::from(ids, {links.batch, 1, n, keys});
      s = add(s, take_along_axis(qa, contiguous(expand(id, shape)), -1));
    }
    s = mul(s, 1 / std::sqrt(static_cast<double>(c.d_model / c.n_head)));
    const Tensor mask = Tensor::from(visible, shape);
    const Tensor never = full(shape, -1e30, s.dtype());
    const Tensor none = zeros(shape, s.dtype());
    const Tensor w = where(mask, softmax(where(mask, s, never)), none);
    const Tensor y = flatten(transpose(matmul(w, v), 1, 2), 2, 3);  // [B, n, D]
    return p.apply(at + (c.share_out ? "long" : name) + ".out", y);
  }

  Tensor feed_forward(const std::string& at, const Tensor& x) const {
    const bool pre = c.norm == NormPlace::pre;
    const Tensor in = pre ? p.norm(at + "norm1", x, c.norm_eps) : x;
    const Tensor y =
        add(x, p.apply(at + "ff.out", activate(c.activation, p.apply(at + "ff.in", in))));
    return pre ? y : p.norm(at + "norm1", y, c.norm_eps);
  }

  LinkedStreams layer(int64_t i, const LinkedStreams& x) const {
    const std::string at = "layers." + std::to_string(i) + ".";
    const bool pre = c.norm == NormPlace::pre;
    const auto norm = [&](const char* which, const Tensor& t) {
      return p.norm(at + which, t, c.norm_eps);
    };
    const Tensor l = pre ? norm("norm_long", x.l) : x.l, g = pre ? norm("norm_global", x.g) : x.g;
    LinkedStreams y{add(x.l, side(i, at + "attention.", false, l, l, g)),
                    add(x.g, side(i, at + "attention.", true, g, l, g))};
    if (!pre) y = {norm("norm_long", y.l), norm("norm_global", y.g)};
    return {feed_forward(at + (c.share_ff ? "" : "long_") + "feed_forward.", y.l),
            feed_forward(at + (c.share_ff ? "" : "global_") + "feed_forward.", y.g)};
  }
};

}  // namespace

EtcInputs Links::inputs(const EtcConfig& c, uint64_t seed) const {
  EtcInputs in;
  in.tokens = some_tokens(batch, n_l, c.vocab - 2, seed);
  in.globals = full({batch, n_g}, static_cast<double>(c.global_id), DType::i64);
  LinkedStructure& s = in.structure;
  s.owner = tensor(owner, owners == 1 ? Shape{batch, n_l} : Shape{batch, n_l, owners});
  s.context = tensor(context, {batch, n_l});
  s.example = tensor(example, {batch, n_l});
  s.link_class = tensor(link_class, {batch, n_l});
  s.l2g_all = tensor(l2g_all, {batch, n_l});
  s.global_context = tensor(global_context, {batch, n_g});
  s.global_example = tensor(global_example, {batch, n_g});
  s.g2l_all = tensor(g2l_all, {batch, n_g});
  s.global_labels = tensor(global_labels, {1, n_g, n_g});
  s.link_labels = tensor(link_labels, {1, classes, n_g});
  return in;
}

bool Links::owns(int64_t b, int64_t m, int64_t j) const {
  for (int64_t o = 0; o < owners; ++o) {
    if (get(owner, b, n_l * owners, j * owners + o, -1) == m) return true;
  }
  return false;
}

int64_t label_of(const EtcConfig& c, const Links& s, LinkPiece piece, int64_t b, int64_t i,
                 int64_t j) {
  const bool from_long = piece == LinkPiece::l2l || piece == LinkPiece::l2g;
  const bool to_long = piece == LinkPiece::l2l || piece == LinkPiece::g2l;
  const auto example = [&](bool of_long, int64_t x) {
    return of_long ? get(s.example, b, s.n_l, x, 0) : get(s.global_example, b, s.n_g, x, 0);
  };
  if (example(from_long, i) < 0 || example(from_long, i) != example(to_long, j)) return -1;
  const int64_t k = c.max_distance, delta = j - i;
  const int64_t distance = delta >= 0 ? std::min(delta, k) : k + std::min(-delta, k);
  if (piece == LinkPiece::l2l) {
    const bool same = get(s.context, b, s.n_l, i, 0) == get(s.context, b, s.n_l, j, 0);
    return same && std::abs(delta) <= c.radius ? distance : -1;
  }
  if (piece == LinkPiece::g2g) {
    if (!s.global_labels.empty()) return s.global_labels[static_cast<size_t>(i * s.n_g + j)];
    const int64_t x = get(s.global_context, b, s.n_g, i, -1),
                  y = get(s.global_context, b, s.n_g, j, -1);
    return x >= 0 && y >= 0 && x != y ? 2 * k + 3 : distance;
  }
  const int64_t token = from_long ? i : j, global = from_long ? j : i;
  const bool owned = s.owns(b, global, token);
  if (piece == LinkPiece::l2g && c.hard_l2g && !owned && get(s.l2g_all, b, s.n_l, token, 0) == 0) {
    return -1;
  }
  if (piece == LinkPiece::g2l && c.hard_g2l && !owned && get(s.g2l_all, b, s.n_g, global, 0) == 0) {
    return -1;
  }
  if (!s.link_labels.empty()) {
    const int64_t cls = get(s.link_class, b, s.n_l, token, 0);
    return s.link_labels[static_cast<size_t>(cls * s.n_g + global)];
  }
  return owned ? 2 * k + 2 : 2 * k + 1;
}

Links sentences(int64_t batch, int64_t n_l) {
  Links s;
  s.batch = batch;
  s.n_l = n_l;
  const int64_t lengths[] = {1, 4, 2, 7, 3, 5};
  std::vector<int64_t> owner;
  while (static_cast<int64_t>(owner.size()) < n_l) {
    const int64_t left = n_l - static_cast<int64_t>(owner.size());
    owner.insert(owner.end(), static_cast<size_t>(std::min(left, lengths[s.n_g % 6])), s.n_g);
    ++s.n_g;
  }
  for (int64_t b = 0; b < batch; ++b) s.owner.insert(s.owner.end(), owner.begin(), owner.end());
  return s;
}

LinkedStreams dense_encoder(const EtcConfig& c, Module& model, const EtcInputs& in,
                            const Links& links) {
  const Parameters p(model);
  const auto embed = [&](const Tensor& ids, int64_t type, const char* norm, const char* position) {
    Tensor x = embedding(p["embed.token.weight"], ids);
    if (c.d_embed > 0) x = p.apply("embed.projection", x);
    if (c.token_types > 0) x = add(x, select(p["embed.type.weight"], 0, type));
    if (p.has(position)) x = add(x, narrow(p[position], 0, 0, ids.dim(1)));
    return p.norm(std::string("embed.") + norm, x, c.norm_eps);
  };
  LinkedStreams x{embed(in.tokens, 1, "norm_long", "embed.position.weight"),
                  embed(in.globals, 0, "norm_global", "embed.global_position.weight")};
  const DenseEtc dense{c, p, links};
  for (int64_t i = 0; i < c.n_layer; ++i) x = dense.layer(i, x);
  if (c.norm == NormPlace::post || !c.final_norm) return x;
  return {p.norm("final_norm", x.l, c.norm_eps), p.norm("final_norm", x.g, c.norm_eps)};
}

}  // namespace longspan::test
