// SentencePiece models, through the library of that name.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/error.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "data/tokenizers/sentence_piece_model.h"
#include "data/tokenizers/tokenizer.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

constexpr int32_t space_mark = 0x2581;
constexpr std::string_view space_mark_text = "\xE2\x96\x81";

class SentencePieces : public Tokenizer {
 public:
  explicit SentencePieces(const std::string& path) {
    const std::string file = read_file(path, "tokenizer", 1 << 30);
    require<IoError>(!file.empty(), "tokenizer", "{} is empty; expected a SentencePiece model",
                     path);
    require_sound_sentence_pieces(file, path);
    const std::string problem = load(file);
    require<IoError>(problem.empty(), "tokenizer", "{} is not a SentencePiece model: {}", path,
                     problem);
    bool bytes = true;
    for (size_t byte = 0; byte < 256; ++byte) {
      byte_ids_[byte] = find(fmt::format("<0x{:02X}>", byte));
      bytes = bytes && byte_ids_[byte] >= 0 && processor_.IsByte(byte_ids_[byte]);
    }
    constexpr const char* spaces = "  a  b  ";
    const std::vector<int> a = processor_.EncodeAsIds("a");
    lossless_ = bytes && processor_.DecodeIds(processor_.EncodeAsIds(spaces)) == spaces &&
                !a.empty() && !begins_with_space(a[0]);
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      lines_apart_ = lines_apart_ && processor_.IdToPiece(id).find('\n') == std::string::npos;
    }
    find_special();
    set_hash("sentencepiece", file);
  }

  std::vector<Piece> pieces(std::string_view text) const override {
    std::vector<Piece> out;
    size_t begin = 0, at = 0;
    while (lossless_ && at < text.size()) {
      const CodePoint c = code_point(text, at);
      const auto length = static_cast<size_t>(c.length);
      if (c.value < 0 || c.value == space_mark) {
        encode_part(text, begin, at, out);
        for (size_t i = at; i < at + length; ++i) {
          const auto place = static_cast<int64_t>(i);
          out.push_back({byte_ids_[static_cast<uint8_t>(text[i])], i == at, place, place + 1});
        }
        begin = at + length;
      } else if (c.value == '\n' && lines_apart_) {
        encode_part(text, begin, at + length, out);
        begin = at + length;
      }
      at += length;
    }
    encode_part(text, begin, text.size(), out);
    return out;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    for (const int32_t id : ids) require_id(id);
    if (!lossless_) return processor_.DecodeIds({ids.begin(), ids.end()});
    std::string text;
    for (size_t begin = 0; begin < ids.size();) {
      const bool byte = processor_.IsByte(ids[begin]);
      size_t end = begin + 1;
      while (end < ids.size() && processor_.IsByte(ids[end]) == byte) ++end;
      const auto run = ids.subspan(begin, end - begin);
      if (byte) {
        for (const int32_t id : run) text += static_cast<char>(byte_of(id));
      } else {
        text += processor_.DecodeIds({run.begin(), run.end()});
      }
      begin = end;
    }
    return text;
  }

  Json hub_file() const override {
    const SentencePieceParts parts =
        read_sentence_piece_parts(processor_.serialized_model_proto(), "the model");
    const auto require_only = [](bool holds, const char* what) {
      require(holds, "tokenizer",
              "a SentencePiece model {} cannot be written as a tokenizer.json with equal ids; open "
              "its folder as one of a "
              "class, such as XLMRobertaTokenizer, for what the package makes of it",
              what);
    };
    require_only(parts.rules.empty(),
                 "with rules for characters (a normalization other than identity)");
    require_only(!parts.prefix, "that puts a space before texts (add_dummy_prefix)");
    require_only(!parts.single, "that removes spaces (remove_extra_whitespaces)");
    require_only(parts.escapes, "that does not write spaces as U+2581");
    require_only(parts.model == 1 || parts.model == 2, "that is neither unigram nor BPE");
    Json::Array added = hub_special_tokens().array();
    for (size_t id = 0; id < parts.pieces.size(); ++id) {
      const SentencePieceParts::Piece& piece = parts.pieces[id];
      const bool named = std::any_of(added.begin(), added.end(), [&](const Json& t) {
        return t["content"].string() == piece.text;
      });
      if (named || (piece.kind != 3 && piece.kind != 4)) continue;
      added.push_back(Members{{"id", id},
                              {"content", piece.text},
                              {"normalized", false},
                              {"special", piece.kind == 3}});
    }
    const Json from_space = Members{
        {"type", "Replace"}, {"pattern", Members{{"String", " "}}}, {"content", space_mark_text}};
    const Json to_space = Members{
        {"type", "Replace"}, {"pattern", Members{{"String", space_mark_text}}}, {"content", " "}};
    return Members{
        {"added_tokens", std::move(added)},
        {"normalizer", from_space},
        {"decoder", Members{{"type", "Sequence"},
                            {"decoders", Json::Array{to_space, Members{{"type", "ByteFallback"}},
                                                     Members{{"type", "Fuse"}}}}}},
        {"model", hub_model(parts)}};
  }
  WordRole word_role(int32_t id) const override {
    if (processor_.IsByte(id)) return byte_of(id) < 0x80 ? WordRole::alone : WordRole::inside;
    if (processor_.IsControl(id) || processor_.IsUnknown(id)) return WordRole::alone;
    return begins_with_space(id) ? WordRole::first : Tokenizer::word_role(id);
  }
  int64_t vocabulary() const override { return processor_.GetPieceSize(); }
  int32_t find(std::string_view token) const override {
    const int id = processor_.PieceToId(token);
    return id >= 0 && id < processor_.GetPieceSize() && processor_.IdToPiece(id) == token ? id : -1;
  }
  std::string token(int32_t id) const override {
    require_id(id);
    return processor_.IdToPiece(id);
  }

 private:
  /// Loads a model into the library; returns its error message, or nothing.
  std::string load(const std::string& model) {
    try {
      const sentencepiece::util::Status status = processor_.LoadFromSerializedProto(model);
      return status.ok() ? "" : status.ToString();
    } catch (const std::exception& error) {  // from the library's dependencies
      return error.what();
    }
  }

  static Json hub_model(const SentencePieceParts& parts) {
    if (parts.model == 2) {
      Members vocabulary;
      for (size_t id = 0; id < parts.pieces.size(); ++id)
        vocabulary.push_back({parts.pieces[id].text, id});
      return Members{{"type", "BPE"},
                     {"unk_token", parts.pieces.at(static_cast<size_t>(parts.unknown)).text},
                     {"fuse_unk", true},
                     {"byte_fallback", parts.bytes},
                     {"vocab", std::move(vocabulary)},
                     {"merges", sentence_piece_merges(parts)}};
    }
    Json::Array vocabulary;
    for (const SentencePieceParts::Piece& piece : parts.pieces) {
      vocabulary.push_back(Json::Array{Json(piece.text), Json(static_cast<double>(piece.score))});
    }
    return Members{{"type", "Unigram"},
                   {"unk_id", parts.unknown},
                   {"vocab", std::move(vocabulary)},
                   {"byte_fallback", parts.bytes}};
  }

  bool begins_with_space(int32_t id) const {
    return std::string_view(processor_.IdToPiece(id)).substr(0, space_mark_text.size()) ==
           space_mark_text;
  }
  uint8_t byte_of(int32_t id) const {
    const auto at = std::find(byte_ids_.begin(), byte_ids_.end(), id);
    return static_cast<uint8_t>(at - byte_ids_.begin());
  }

  /// Adds the pieces of text[begin, end).
  void encode_part(std::string_view text, size_t begin, size_t end, std::vector<Piece>& out) const {
    if (begin == end) return;
    const sentencepiece::ImmutableSentencePieceText encoded =
        processor_.EncodeAsImmutableProto(text.substr(begin, end - begin));
    const auto offset = static_cast<int64_t>(begin);
    for (const auto& piece : encoded.pieces()) {
      const auto id = static_cast<int32_t>(piece.id());
      const int64_t from = offset + piece.begin(), to = offset + piece.end();
      const char before = from > 0 ? text[static_cast<size_t>(from - 1)] : '\n';
      const bool starts = from == 0 || begins_with_space(id) || before == '\n' || before == '\t';
      out.push_back({id, starts, from, to});
    }
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::array<int32_t, 256> byte_ids_{};
  bool lossless_ = false;
  // Whether no piece crosses the end of a line. Then each line is encoded separately: the library
  // adds scores in f32, whose sums are too coarse for texts as long as a book.
  bool lines_apart_ = true;
};

/// A model with the numbering of Pegasus: `offset` additional ids precede the model's own, of which
/// the first two, padding and end, are moved to the front.
class PegasusPieces : public Tokenizer {
 public:
  PegasusPieces(const std::string& path, int32_t offset) : inner_(path), offset_(offset) {
    require(offset >= 2, "tokenizer", "offset is {}; expected 0, or 2 or more", offset);
    const char* names[] = {"<pad>", "</s>", "<unk>"};
    for (int32_t id = 0; id < 3; ++id) {
      require<IoError>(inner_.find(names[id]) == id, "tokenizer",
                       "{} does not begin with <pad>, </s> and <unk>; expected a model of Pegasus, "
                       "or no offset",
                       path);
    }
    find_special();
    set_hash("pegasus", fmt::format("{} {:x}", offset, inner_.hash()));
  }

  std::vector<Piece> pieces(std::string_view text) const override {
    std::vector<Piece> out = inner_.pieces(text);
    for (Piece& piece : out) piece.id += offset_;
    return out;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::vector<int32_t> own;  // reserved ids have no text
    for (const int32_t id : ids) {
      require_id(id);
      if (id >= first()) own.push_back(id - offset_);
    }
    return inner_.decode(own);
  }
  WordRole word_role(int32_t id) const override {
    return id < first() ? WordRole::alone : inner_.word_role(id - offset_);
  }
  int64_t vocabulary() const override { return inner_.vocabulary() + offset_; }
  int32_t find(std::string_view token) const override {
    for (int32_t id = 0; id < first(); ++id) {
      if (reserved(id) == token) return id;
    }
    const int32_t id = inner_.find(token);
    return id < 2 ? -1 : id + offset_;
  }
  std::string token(int32_t id) const override {
    require_id(id);
    return id < first() ? reserved(id) : inner_.token(id - offset_);
  }

 private:
  /// The first id of a piece: the model's own <unk>.
  int32_t first() const { return offset_ + 2; }
  static std::string reserved(int32_t id) {
    constexpr const char* names[] = {"<pad>", "</s>", "<mask_1>", "<mask_2>"};
    return id < 4 ? names[id] : fmt::format("<unk_{}>", id - 2);
  }

  SentencePieces inner_;
  int32_t offset_;
};

/// The longest line that the trainer takes, in bytes, and the parts of longer ones. Parts are short
/// because the trainer adds scores in f32, and from long lines it learns worse: in lines of a
/// book's length a text needs twice as many tokens. Pieces do not reach beyond spaces, where lines
/// are cut.
constexpr size_t longest_line = 4096, part_of_line = 256;

/// The lines of a text, for the trainer. It would leave out lines that are longer than it takes,
/// and those with the character that it reserves, without a word: the former are cut, at a space if
/// there is one, and the latter end at that character.
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(std::string_view text) : rest_(text) { Next(); }

  bool done() const override { return done_; }
  void Next() override {
    done_ = rest_.empty();
    const std::string_view head = rest_.substr(0, longest_line + 1);
    size_t end = std::min(head.find('\n'), head.size()), next = end + 1;
    if (const size_t reserved = head.substr(0, end).find(reserved_character);
        reserved != std::string_view::npos) {
      end = reserved;
      next = reserved + reserved_character.size();
    }
    if (end > longest_line) next = end = cut_of(head.substr(0, part_of_line + 1));
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(next, rest_.size()));
  }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  static constexpr std::string_view reserved_character = "\u2585";

  /// Returns where to cut a line that begins with this text: the next line begins with the last
  /// space, as the words of a text do, or with a whole character.
  static size_t cut_of(std::string_view begin) {
    const size_t space = begin.rfind(' ');
    if (space != std::string_view::npos && space > 0) return space;
    size_t at = begin.size() - 1;
    for (int i = 0; i < 3 && (static_cast<uint8_t>(begin[at]) & 0xC0) == 0x80; ++i) --at;
    return at;
  }

  std::string_view rest_;
  std::string line_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentence_pieces(const std::string& path,
                                                const SentencePieceOptions& options) {
  if (options.offset != 0) return std::make_unique<PegasusPieces>(path, options.offset);
  return std::make_unique<SentencePieces>(path);
}

std::string train_sentence_pieces(std::string_view text, const SentencePieceTraining& options) {
  require(options.kind == "unigram" || options.kind == "bpe", "tokenizer",
          "got kind \"{}\"; expected unigram or bpe", options.kind);
  std::string symbols;
  for (const std::string& symbol : options.symbols) {
    require(!symbol.empty() && symbol.find(',') == std::string::npos, "tokenizer",
            "got the symbol \"{}\"; expected text without a comma", symbol);
    require(symbol.size() <= longest_sentence_piece, "tokenizer",
            "a symbol has {} bytes; expected at most {}", symbol.size(), longest_sentence_piece);
    symbols += (symbols.empty() ? "" : ",") + symbol;
  }
  const char* lossless = options.lossless ? "true" : "false";
  const char* changes = options.lossless ? "false" : "true";
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", options.kind},
      {"vocab_size", fmt::format("{}", options.vocabulary)},
      {"normalization_rule_name", options.lossless ? "identity" : "nmt_nfkc"},
      {"byte_fallback", lossless},
      {"add_dummy_prefix", changes},
      {"remove_extra_whitespaces", changes},
      {"control_symbols", symbols},
      {"pad_id", "3"},
      {"max_sentence_length", fmt::format("{}", longest_line)},
      {"num_threads", "1"},  // the order of sums over threads affects the pieces
      {"minloglevel", "2"}};
  Lines lines(text);
  std::string model;
  const sentencepiece::util::Status status =
      sentencepiece::SentencePieceTrainer::Train(settings, &lines, &model);
  require(status.ok(), "tokenizer", "no SentencePiece model of {} tokens from {} bytes: {}",
          options.vocabulary, text.size(), status.ToString());
  return model;
}

}  // namespace longspan
