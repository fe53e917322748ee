#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

class Json;

/// Ids of special tokens, which stand for no text; -1 if the vocabulary has none.
struct SpecialIds {
  int32_t pad = -1;        ///< [PAD] or <pad>
  int32_t unknown = -1;    ///< [UNK] or <unk>
  int32_t begin = -1;      ///< [CLS] or <s>: before a text
  int32_t separator = -1;  ///< [SEP] or </s>: after a text
  int32_t mask = -1;       ///< [MASK] or <mask>

  friend bool operator==(const SpecialIds&, const SpecialIds&) = default;
};

/// A token and the bytes of the text that it stands for.
struct Piece {
  int32_t id = 0;
  bool starts_word = false;    ///< whether it is the first piece of a word
  int64_t begin = 0, end = 0;  ///< bytes of the text

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// How a token takes part in words: it is alone (punctuation, spaces), begins a word, or continues
/// one unless the token before it is alone.
enum class WordRole : uint8_t { alone, first, inside };

/// Converts text to ids and back. Text is any sequence of bytes; names of special tokens in it are
/// ordinary text. Objects are immutable, so several threads may share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the tokens of a text, in order. Throws ValueError only if the kind has no token for a
  /// character, e.g. char27.
  virtual std::vector<Piece> pieces(std::string_view text) const = 0;
  /// Returns the text of these tokens, without what the kind discards (case, spaces). Throws
  /// ValueError if an id is not in the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// V: ids are 0 to V - 1.
  virtual int64_t vocabulary() const = 0;
  /// Returns the id of a token as its vocabulary spells it, or -1.
  virtual int32_t find(std::string_view token) const = 0;
  /// Returns the spelling of a token in the vocabulary. Throws ValueError if there is none.
  virtual std::string token(int32_t id) const = 0;

  /// Returns the role of a token in words, by its first byte unless the kind overrides it. Letters,
  /// digits and bytes from 128 on form words.
  virtual WordRole word_role(int32_t id) const;

  /// Returns a tokenizer.json of the package tokenizers (docs/tokenizers.md) that gives the ids of
  /// texts without names of special tokens. Throws ValueError that names what such a file cannot
  /// express; so does the default.
  virtual Json hub_file() const;
  /// Returns the ids of pieces().
  virtual std::vector<int32_t> encode(std::string_view text) const;
  /// Returns word_role() of every id.
  std::vector<WordRole> word_roles() const;
  const SpecialIds& special() const { return special_; }
  /// XXH3 of the kind and of everything that determines its ids: equal tokenizers have equal hashes
  /// in every process.
  uint64_t hash() const { return hash_; }

 protected:
  /// Sets hash().
  void set_hash(std::string_view kind, std::string_view content);
  void set_special(const SpecialIds& special) { special_ = special; }
  /// Returns the member "added_tokens" of hub_file(): the special tokens with a customary name.
  Json hub_special_tokens() const;
  /// Sets special() from the customary names.
  void find_special();
  /// Throws ValueError that names the kind unless `id` is in the vocabulary.
  void require_id(int32_t id) const;

 private:
  SpecialIds special_;
  uint64_t hash_ = 0;
};

/// Id = byte; V = 256. A word is a run of letters, digits and bytes from 128 on.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// Space is 0, a to z are 1 to 26: the alphabet of text8. Throws for other bytes.
std::unique_ptr<Tokenizer> char27_tokenizer();

/// Words between white space, and <eos> at the end of every line, including empty ones. The
/// vocabulary is the words of `training`, most frequent first, ties in order of occurrence; <unk>
/// is appended if it is not among them. Decoding puts one space between words and a line feed for
/// <eos>.
std::unique_ptr<Tokenizer> word_tokenizer(std::string_view training);

/// Options of a WordPiece vocabulary.
struct WordPieceOptions {
  bool lower_case = true;  ///< uncased: lower-cases text and removes accents
};

/// WordPiece, \cite devlin2019. Text is split at white space, at punctuation and around CJK
/// characters. Each word is covered from left to right by the longest pieces in the vocabulary;
/// pieces inside a word begin with "##". A word that cannot be covered, or has more than 100
/// characters, is one [UNK]. Invalid UTF-8 and control characters are dropped. `path` is vocab.txt,
/// one token per line. Decoding puts a space between words. Throws IoError.
std::unique_ptr<Tokenizer> open_word_pieces(const std::string& path,
                                            const WordPieceOptions& options = {});

/// Options of a byte-level BPE vocabulary.
struct BytePairOptions {
  bool prefix_space = false;  ///< puts a space before a text that begins with none
};

/// Byte-level BPE, \cite radford2019. Text is split into words, numbers, punctuation and spaces; in
/// each, adjacent tokens are joined in the priority order of `merges`. Any bytes decode to
/// themselves. `vocab` is vocab.json, `merges` merges.txt, as in GPT-2, RoBERTa, Longformer and
/// BART. Throws IoError.
std::unique_ptr<Tokenizer> open_byte_pairs(const std::string& vocab, const std::string& merges,
                                           const BytePairOptions& options = {});

/// Options of a SentencePiece model.
struct SentencePieceOptions {
  /// Shift of the ids: Pegasus numbers its pieces from 103 on, and has names of its own for the ids
  /// below offset + 2: <pad>, </s>, <mask_1>, <mask_2>, <unk_2>, <unk_3> and so on. 0: ids are the
  /// model's.
  int32_t offset = 0;
};

/// A model of the SentencePiece library \cite kudo2018. If the model has byte pieces and neither
/// adds nor removes spaces, any bytes decode to themselves: invalid UTF-8 and U+2581, with which
/// the library encodes spaces, become byte pieces. Throws IoError, also if an offset is set and the
/// model does not begin with <pad>, </s> and <unk>.
std::unique_ptr<Tokenizer> open_sentence_pieces(const std::string& path,
                                                const SentencePieceOptions& options = {});

/// Options of training a SentencePiece model.
struct SentencePieceTraining {
  std::string kind = "unigram";  ///< or "bpe"
  int64_t vocabulary = 8000;
  bool lossless = true;  ///< byte pieces, no normalisation: decode(encode(x)) = x for all bytes;
                         ///< else NFKC and single spaces
  std::vector<std::string> symbols = {};  ///< additional special tokens, e.g. "[MASK]"
};

/// Trains a model on the lines of a text with the SentencePiece library and returns the bytes of
/// its file. Lines of more than 4,096 bytes are cut into parts of 256, at spaces where there are
/// any: the library would leave them out, or learn worse from them. Ids: 0 <unk>, 1 <s>, 2 </s>, 3
/// <pad>, then `symbols`. The result is deterministic. Throws ValueError with the library's
/// message, e.g. if the text does not support the vocabulary size.
std::string train_sentence_pieces(std::string_view text, const SentencePieceTraining& options = {});

/// Opens a tokenizer by name: "bytes", "char27", a SentencePiece file (.model), a WordPiece file
/// (.txt), or a folder with tokenizer.json (open_hub_tokenizer()), vocab.json and merges.txt,
/// vocab.txt or one .model file. Settings in
/// tokenizer_config.json and config.json, in that folder or beside that file, apply as in the
/// transformers package (docs/tokenizers.md). "FOLDER:NAME=VALUE,NAME=VALUE" opens a folder as
/// open_hub_tokenizer() does, with these settings instead of those in its files
/// (HubOptions::settings, and special_in_text). Throws ValueError that lists these names for any
/// other name, and for unsupported settings.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

/// Returns the path in a name for open_tokenizer(): the name without settings.
std::string tokenizer_path(const std::string& name);

}  // namespace longspan
