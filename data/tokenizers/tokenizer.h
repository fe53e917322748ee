#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Ids that stand for no text of their own; -1 where the vocabulary has none.
struct SpecialIds {
  int32_t pad = -1;        ///< [PAD] or <pad>
  int32_t unknown = -1;    ///< [UNK] or <unk>
  int32_t begin = -1;      ///< [CLS] or <s>: before a text
  int32_t separator = -1;  ///< [SEP] or </s>: after a text
  int32_t mask = -1;       ///< [MASK] or <mask>

  friend bool operator==(const SpecialIds&, const SpecialIds&) = default;
};

/// A token and the part of the text that it stands for.
struct Piece {
  int32_t id = 0;
  bool starts_word = false;    ///< whether it is the first piece of a word
  int64_t begin = 0, end = 0;  ///< bytes of the text

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// How a token takes part in words: it stands alone (punctuation, spaces), begins one, or goes on
/// with one where the token before is not alone.
enum class WordRole : uint8_t { alone, first, inside };

/// Turns text into ids and back. Text is any sequence of bytes; names of special tokens in it are
/// text like any other. Objects do not change: several threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The tokens of a text, in order. Throws ValueError only where the kind has no token for
  /// something, e.g. char27.
  virtual std::vector<Piece> pieces(std::string_view text) const = 0;
  /// The text of these tokens; what the kind loses in between (case, spaces) stays lost. Throws
  /// ValueError on an id that is not in the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// V: ids are 0 to V - 1.
  virtual int64_t vocabulary() const = 0;
  /// The id of a token as its vocabulary writes it, or -1.
  virtual int32_t find(std::string_view token) const = 0;
  /// How the vocabulary writes a token. Throws ValueError where there is none.
  virtual std::string token(int32_t id) const = 0;

  /// How a token takes part in words: by its first byte, where the kind does not know better.
  /// Letters, digits and bytes from 128 on go together.
  virtual WordRole word_role(int32_t id) const;

  /// The ids of pieces().
  std::vector<int32_t> encode(std::string_view text) const;
  /// word_role() of every id.
  std::vector<WordRole> word_roles() const;
  const SpecialIds& special() const { return special_; }
  /// XXH3 of the kind and of all that decides its ids: equal tokenizers have equal hashes in every
  /// process.
  uint64_t hash() const { return hash_; }

 protected:
  /// Sets hash().
  void set_hash(std::string_view kind, std::string_view content);
  /// Sets special() by the names that are in use.
  void find_special();
  /// Throws ValueError that names the kind unless `id` is in the vocabulary.
  void require_id(int32_t id) const;

 private:
  SpecialIds special_;
  uint64_t hash_ = 0;
};

/// Id = byte; V = 256. A word is a run of letters, digits and bytes from 128 on.
std::unique_ptr<Tokenizer> byte_tokenizer();

/// Space 0, a to z 1 to 26: the alphabet of text8. Other bytes are refused.
std::unique_ptr<Tokenizer> char27_tokenizer();

/// Words between white space, and <eos> at the end of every line, empty ones included. The
/// vocabulary is that of `training`, most frequent first, and of equal ones the first to occur;
/// <unk> comes last where the text has none. Decoding puts one space between words and a line feed
/// for <eos>.
std::unique_ptr<Tokenizer> word_tokenizer(std::string_view training);

/// How a WordPiece vocabulary is used.
struct WordPieceOptions {
  bool lower_case = true;  ///< uncased: lower case, and accents are removed
};

/// WordPiece, \cite devlin2019. Text is split at white space, at punctuation and around CJK
/// characters, and each word into the longest pieces that there are from left to right; pieces
/// inside a word begin with "##". A word that cannot be covered, or of more than 100 characters, is
/// one [UNK]. Damaged UTF-8 and control characters are left out. `path` is vocab.txt, a token a
/// line. Decoding puts a space between words. Throws IoError.
std::unique_ptr<Tokenizer> open_word_pieces(const std::string& path,
                                            const WordPieceOptions& options = {});

/// How a byte-level BPE vocabulary is used.
struct BytePairOptions {
  bool prefix_space = false;  ///< a space is put before a text that begins with none
};

/// Byte-level BPE, \cite radford2019. Text is split into words, numbers, punctuation and spaces,
/// and in each the neighbours that `merges` names first are joined first. Any bytes decode to
/// themselves. `vocab` is vocab.json, `merges` merges.txt, as of GPT-2, RoBERTa, Longformer and
/// BART. Throws IoError.
std::unique_ptr<Tokenizer> open_byte_pairs(const std::string& vocab, const std::string& merges,
                                           const BytePairOptions& options = {});

/// How a SentencePiece model is used.
struct SentencePieceOptions {
  /// Pegasus counts its pieces from here on, 103, and has names of its own for the ids below two
  /// more: <pad>, </s>, <mask_1>, <mask_2>, <unk_2>, <unk_3> and so on. 0: ids are the model's.
  int32_t offset = 0;
};

/// A model of the SentencePiece library \cite kudo2018. Where the model has byte
/// pieces and neither adds nor removes spaces, any bytes decode to themselves: damaged UTF-8 and
/// U+2581, with which the library writes spaces, are spelt in byte pieces. Throws IoError, also
/// where a model that is to have an offset does not begin with <pad>, </s> and <unk>.
std::unique_ptr<Tokenizer> open_sentence_pieces(const std::string& path,
                                                const SentencePieceOptions& options = {});

/// What a SentencePiece model is trained with.
struct SentencePieceTraining {
  std::string kind = "unigram";  ///< or "bpe"
  int64_t vocabulary = 8000;
  bool lossless = true;  ///< byte pieces, no normalisation: decode(encode(x)) = x for all bytes;
                         ///< else NFKC, spaces squeezed
  std::vector<std::string> symbols = {};  ///< more special tokens, e.g. "[MASK]"
};

/// The bytes of a model file, trained on the lines of a text by the SentencePiece library. Ids: 0
/// <unk>, 1 <s>, 2 </s>, 3 <pad>, then `symbols`. The same in every run. Throws ValueError with
/// what the library says, e.g. of a vocabulary larger than the text supports.
std::string train_sentence_pieces(std::string_view text, const SentencePieceTraining& options = {});

/// The tokenizer that a name stands for: "bytes", "char27", a SentencePiece file (.model), a
/// WordPiece file (.txt), or a folder with vocab.json and merges.txt, vocab.txt or one .model file.
/// What tokenizer_config.json and config.json in that folder, or beside that file, say of how the
/// package transformers uses it holds here, too (docs/tokenizers.md). Throws ValueError that lists
/// these names where it is none of them, and on settings that are not had here.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

}  // namespace longspan
