#include "data/tokenizers/hub_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "data/tokenizers/hub_added_tokens.h"
#include "data/tokenizers/hub_model.h"
#include "data/tokenizers/hub_pre_tokenizer.h"
#include "data/tokenizers/hub_processor.h"
#include "data/tokenizers/hub_rows.h"
#include "data/tokenizers/word_cache.h"
#include "data/unicode/byte_level.h"
#include "data/unicode/unicode.h"

namespace longspan {

class HubTokenizer::Pipeline {
 public:
  Pipeline(const Json& file, HubSettings settings, const std::string& name, bool special_in_text)
      : settings_(std::move(settings)) {
    HubIssues issues;
    HubPart part(file, "tokenizer", issues);
    part.text("version", "");
    const auto member = [&](const char* key) {
      const Json* value = part.find(key);
      return value == nullptr ? Json() : *value;
    };
    const Json model = member("model");
    parts_ = {{"truncation", member("truncation")},
              {"padding", member("padding")},
              {"added_tokens", member("added_tokens")},
              {"normalizer", member("normalizer")},
              {"pre_tokenizer", member("pre_tokenizer")},
              {"post_processor", member("post_processor")},
              {"decoder", member("decoder")}};
    normalizer_ = HubNormalizer(part_of("normalizer"), issues);
    pre_tokenizer_ = HubPreTokenizer(part_of("pre_tokenizer"), issues);
    decoder_ = HubDecoder(part_of("decoder"), issues);
    model_ = read_hub_model(model, issues);
    part.finish();
    if (model_ == nullptr) issues.raise(name);
    added_ = HubAddedTokens(part_of("added_tokens"), *model_, normalizer_, special_in_text, issues);
    limit_ = std::max(model_->tokens().limit(), added_.limit());
    processor_ = HubProcessor(part_of("post_processor"), limit_, issues);
    file_options_ = read_file_options(part_of("truncation"), part_of("padding"), issues);
    issues.raise(name);
    counts_spaces_ = processor_.trims() && model_->kind() == "Unigram";
    require<IoError>(limit_ > 0, detail::tokenizer_op, "{} has no tokens", name);
  }

  const Json& part_of(std::string_view name) const {
    const auto at = std::find_if(parts_.begin(), parts_.end(),
                                 [&](const JsonMember& m) { return m.name == name; });
    return at->value;
  }

  /// Adds the tokens of a text to `out`. `word`: all of it is one word of that index; -1: words are
  /// counted.
  void encode(std::string_view text, bool with_sources, int32_t word,
              std::vector<HubToken>& out) const {
    require(text.size() < UINT32_MAX / 8, detail::tokenizer_op,
            "a text has {} bytes; expected less than {}", text.size(), UINT32_MAX / 8);
    Lease lease(*this);
    Work& work = *lease.work;
    work.out = &out;
    work.word = word;
    work.next_word = 0;
    work.tracked = with_sources || pre_tokenizer_.needs_source();
    if (added_.none(false)) return encode_section(text, 0, work);
    added_.split(text, false, work.sections);
    for (const HubAddedTokens::Part& part : work.sections) {
      if (part.token < 0) {
        encode_section(text.substr(part.begin, part.end - part.begin), part.begin, work);
        continue;
      }
      add_token(part.token, {static_cast<uint32_t>(part.begin), static_cast<uint32_t>(part.end)},
                text.substr(part.begin, part.end - part.begin), work);
    }
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special, bool utf8) const {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const int32_t id : ids) {
      require(id >= 0 && id < limit_, "decode", "id {} is not in the vocabulary of {} tokens", id,
              limit_);
      const std::optional<std::string_view> token = spelling(id);
      if (!token) continue;
      const HubAddedToken* added = skip_special ? added_.find(*token) : nullptr;
      if (added == nullptr || !added->special) tokens.emplace_back(*token);
    }
    return decoder_.decode(std::move(tokens), utf8);
  }

  /// Returns how an id is spelled; nothing for ids within a gap.
  std::optional<std::string_view> spelling(int32_t id) const {
    if (const HubAddedToken* added = added_.find(id)) return added->shown;
    if (model_->tokens().has(id)) return model_->tokens().token(id);
    return {};
  }
  int32_t find(std::string_view token) const {
    if (const HubAddedToken* added = added_.find(token)) return added->id;
    return model_->tokens().find(token);
  }

  const HubSettings& settings() const { return settings_; }
  const HubAddedTokens& added() const { return added_; }
  const HubModel& model() const { return *model_; }
  const HubProcessor& processor() const { return processor_; }
  const HubEncodeOptions& file_options() const { return file_options_; }
  const Members& parts() const { return parts_; }
  int64_t limit() const { return limit_; }
  bool bytes_last() const { return pre_tokenizer_.bytes_last(); }

 private:
  /// What a thread writes to while it encodes a text.
  struct Work {
    HubPreTokenizer::Words words;
    AlignedText normalized;
    std::vector<HubAddedTokens::Part> sections, parts;
    WordCache cache;
    std::vector<HubPiece> pieces;
    std::string spelled;
    std::vector<uint32_t> places;
    std::vector<HubToken>* out = nullptr;
    int32_t word = -1, next_word = 0;
    bool tracked = false;
  };
  /// Lends a thread a Work, which keeps its memory and its cache.
  struct Lease {
    explicit Lease(const Pipeline& p) : pipeline(p) {
      const std::lock_guard lock(p.mutex_);
      if (p.free_.empty()) {
        work = std::make_unique<Work>();
      } else {
        work = std::move(p.free_.back());
        p.free_.pop_back();
      }
    }
    ~Lease() {
      const std::lock_guard lock(pipeline.mutex_);
      if (pipeline.free_.size() < most_kept) pipeline.free_.push_back(std::move(work));
    }
    static constexpr size_t most_kept = 64;
    const Pipeline& pipeline;
    std::unique_ptr<Work> work;
  };

  void add_token(int32_t index, SourceBytes source, std::string_view found, Work& work) const {
    const int32_t word = work.word >= 0 ? work.word : work.next_word;
    ++work.next_word;
    const auto [leading, trailing] = spaces_around(found);
    work.out->push_back(
        {added_.all()[static_cast<size_t>(index)].id, word, source, true, true, leading, trailing});
  }

  void encode_section(std::string_view text, size_t begin, Work& work) const {
    AlignedText& changed = work.words.text;
    changed.assign(text, begin, work.tracked);
    normalizer_.apply(changed, work.words.spare);
    if (added_.none(true)) return encode_words(work);
    added_.split(changed.bytes, true, work.parts);
    if (work.parts.size() == 1 && work.parts[0].token < 0) return encode_words(work);
    std::swap(changed, work.normalized);
    const AlignedText& all = work.normalized;
    for (const HubAddedTokens::Part& part : work.parts) {
      if (part.token >= 0) {
        add_token(part.token, all.source(part.begin, part.end),
                  std::string_view(all.bytes).substr(part.begin, part.end - part.begin), work);
        continue;
      }
      changed.begin_from(all);
      changed.bytes.assign(all.bytes, part.begin, part.end - part.begin);
      if (all.tracked) {
        changed.from.assign(all.from.begin() + static_cast<std::ptrdiff_t>(part.begin),
                            all.from.begin() + static_cast<std::ptrdiff_t>(part.end));
      }
      encode_words(work);
    }
  }

  /// Adds the tokens of work.words.text.
  void encode_words(Work& work) const {
    pre_tokenizer_.apply(work.words);
    const AlignedText& text = work.words.text;
    for (const HubWord& word : work.words.words) {
      const std::string_view bytes =
          std::string_view(text.bytes).substr(word.begin, word.end - word.begin);
      const int32_t index = work.word >= 0 ? work.word : work.next_word;
      ++work.next_word;
      bool starts = true;
      for (const HubPiece& piece : tokens_of(bytes, work)) {
        const SourceBytes source = text.source(word.begin + piece.begin, word.begin + piece.end);
        work.out->push_back(
            {.id = piece.id, .word = index, .source = source, .starts_word = starts});
        if (counts_spaces_)
          count_spaces(bytes.substr(piece.begin, piece.end - piece.begin), work.out->back());
        starts = false;
      }
    }
  }

  /// Counts the spaces of a token of Unigram, which the package knows by its text.
  void count_spaces(std::string_view text, HubToken& token) const {
    token.counted = true;
    const std::string_view spelled = model_->tokens().token(token.id);
    if (spelled != text && spelled.size() == 6 && spelled.starts_with("<0x")) return;  // a byte
    if (!pre_tokenizer_.bytes_last()) {
      std::tie(token.leading, token.trailing) = spaces_around(text);
      return;
    }
    const size_t first = std::min(text.find_first_not_of(' '), text.size());
    const size_t last = text.find_last_not_of(' ');
    token.leading = static_cast<int32_t>(first);
    token.trailing =
        static_cast<int32_t>(last == std::string_view::npos ? text.size() : text.size() - last - 1);
  }

  std::span<const HubPiece> tokens_of(std::string_view word, Work& work) const {
    const auto make = [&](std::vector<HubPiece>& out) {
      if (!pre_tokenizer_.bytes_last()) return model_->tokenize(word, out);
      static const std::array<int32_t, 256> characters = byte_level_characters();
      work.spelled.clear();
      work.places.clear();
      for (size_t at = 0; at < word.size(); ++at) {
        append_utf8(work.spelled, characters[static_cast<uint8_t>(word[at])]);
        work.places.resize(work.spelled.size(), static_cast<uint32_t>(at));
      }
      work.places.push_back(static_cast<uint32_t>(word.size()));
      const size_t first = out.size();
      model_->tokenize(work.spelled, out);
      for (size_t i = first; i < out.size(); ++i) {
        const bool some = out[i].end > out[i].begin;
        out[i].end = some ? work.places[out[i].end - 1] + 1 : work.places[out[i].end];
        out[i].begin = work.places[out[i].begin];
      }
    };
    if (word.size() <= WordCache::longest_word) return work.cache.find(word, make);
    work.pieces.clear();
    make(work.pieces);
    return work.pieces;
  }

  HubSettings settings_;
  Members parts_;
  HubNormalizer normalizer_;
  HubPreTokenizer pre_tokenizer_;
  HubDecoder decoder_;
  std::unique_ptr<HubModel> model_;
  HubAddedTokens added_;
  HubProcessor processor_;
  HubEncodeOptions file_options_;
  int64_t limit_ = 0;
  bool counts_spaces_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Work>> free_;
};

HubTokenizer::HubTokenizer(const Json& file, HubSettings settings, const std::string& name,
                           bool special_in_text)
    : pipeline_(std::make_unique<Pipeline>(file, std::move(settings), name, special_in_text)) {
  find_special();
  SpecialIds ids = special();
  const auto name_of = [&](const char* member, int32_t& id) {
    const auto at = pipeline_->settings().names.find(member);
    if (at != pipeline_->settings().names.end() && find(at->second) >= 0) id = find(at->second);
  };
  name_of("pad_token", ids.pad);
  name_of("unk_token", ids.unknown);
  name_of("bos_token", ids.begin);
  name_of("cls_token", ids.begin);
  name_of("eos_token", ids.separator);
  name_of("sep_token", ids.separator);
  name_of("mask_token", ids.mask);
  set_special(ids);
  set_hash(special_in_text ? "hub" : "hub, special tokens are text", to_string(json()));
}

HubTokenizer::~HubTokenizer() = default;

std::vector<Piece> HubTokenizer::pieces(std::string_view text) const {
  std::vector<HubToken> tokens;
  pipeline_->encode(text, true, -1, tokens);
  std::vector<Piece> out;
  out.reserve(tokens.size());
  for (const HubToken& t : tokens)
    out.push_back({t.id, t.starts_word, t.source.begin, t.source.end});
  return out;
}

std::vector<int32_t> HubTokenizer::encode(std::string_view text) const {
  std::vector<HubToken> tokens;
  tokens.reserve(text.size() / 3 + 4);
  pipeline_->encode(text, false, -1, tokens);
  std::vector<int32_t> ids(tokens.size());
  std::transform(tokens.begin(), tokens.end(), ids.begin(), [](const HubToken& t) { return t.id; });
  return ids;
}

std::string HubTokenizer::decode(std::span<const int32_t> ids) const {
  return pipeline_->decode(ids, false, false);
}

std::string HubTokenizer::text(std::span<const int32_t> ids, bool skip_special) const {
  std::string text = pipeline_->decode(ids, skip_special, true);
  return settings().clean_up ? without_token_spaces(std::move(text)) : text;
}

int64_t HubTokenizer::vocabulary() const { return pipeline_->limit(); }

int32_t HubTokenizer::find(std::string_view token) const { return pipeline_->find(token); }

std::string HubTokenizer::token(int32_t id) const {
  require_id(id);
  if (const HubAddedToken* added = pipeline_->added().find(id)) return added->content;
  return std::string(pipeline_->spelling(id).value_or(""));
}

bool HubTokenizer::is_special(int32_t id) const {
  const HubAddedToken* added = pipeline_->added().find(id);
  return added != nullptr && added->special;
}

WordRole HubTokenizer::word_role(int32_t id) const {
  const std::string spelled = token(id);
  if (spelled.empty() || pipeline_->added().find(id) != nullptr) return WordRole::alone;
  const std::string_view prefix = pipeline_->model().inside_prefix();
  if (!prefix.empty()) return spelled.starts_with(prefix) ? WordRole::inside : WordRole::first;
  if (!pipeline_->bytes_last() && spelled.starts_with("\u2581")) return WordRole::first;
  return Tokenizer::word_role(id);
}

HubEncoding HubTokenizer::encode_text(std::string_view text,
                                      const HubEncodeOptions& options) const {
  return std::move(rows({text}, options, false)[0]);
}

HubEncoding HubTokenizer::encode_pair(std::string_view first, std::string_view second,
                                      const HubEncodeOptions& options) const {
  return std::move(rows({first, second}, options, false)[0]);
}

HubEncoding HubTokenizer::encode_words(std::span<const std::string> words,
                                       const HubEncodeOptions& options) const {
  std::vector<HubToken> tokens;
  for (size_t i = 0; i < words.size(); ++i) {
    pipeline_->encode(words[i], true, static_cast<int32_t>(i), tokens);
  }
  const auto source = [&](size_t, int32_t word) -> std::string_view {
    return words[static_cast<size_t>(word)];
  };
  return std::move(made_rows({std::move(tokens)}, options, source, false)[0]);
}

std::vector<HubEncoding> HubTokenizer::windows(std::string_view text,
                                               const HubEncodeOptions& options) const {
  return rows({text}, options, true);
}

std::vector<HubEncoding> HubTokenizer::windows(std::string_view first, std::string_view second,
                                               const HubEncodeOptions& options) const {
  return rows({first, second}, options, true);
}

std::vector<HubEncoding> HubTokenizer::rows(const std::vector<std::string_view>& texts,
                                            const HubEncodeOptions& options, bool all) const {
  std::vector<std::vector<HubToken>> tokens(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) pipeline_->encode(texts[i], true, -1, tokens[i]);
  return made_rows(
      std::move(tokens), options, [&](size_t i, int32_t) { return texts[i]; }, all);
}

std::vector<HubEncoding> HubTokenizer::made_rows(
    std::vector<std::vector<HubToken>> texts, const HubEncodeOptions& options,
    const std::function<std::string_view(size_t, int32_t)>& source, bool all) const {
  const HubPadding padding{pad_id(), 0};
  const auto spelled = [this](int32_t id) { return pipeline_->spelling(id).value_or(""); };
  return make_hub_rows(std::move(texts), pipeline_->processor(), options, padding, spelled, source,
                       all);
}

int64_t HubTokenizer::added_tokens(bool pair) const { return pipeline_->processor().added(pair); }

int32_t HubTokenizer::pad_id() const { return std::max(special().pad, 0); }

const HubSettings& HubTokenizer::settings() const { return pipeline_->settings(); }

const HubEncodeOptions& HubTokenizer::file_options() const { return pipeline_->file_options(); }

Json HubTokenizer::json() const {
  Members members = {{"version", "1.0"}};
  members.insert(members.end(), pipeline_->parts().begin(), pipeline_->parts().end());
  members.push_back({"model", pipeline_->model().json()});
  return members;
}

}  // namespace longspan
