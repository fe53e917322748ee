// Any bytes as a tokenizer.json, or as one of its components in a file that is otherwise sound,
// with any text. What is read must be written and read again with equal ids.

#include "data/tokenizers/hub_tokenizer.h"
#include "data/io/json.h"
#include "tests/fuzz/tokens.h"

using namespace longspan;

namespace {

constexpr const char* models[] = {
    R"({"type":"WordPiece","unk_token":"[UNK]","vocab":{"[UNK]":0,"a":1,"##a":2,"b":3,"##b":5}})",
    R"({"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":{"<unk>":0,"a":1,"b":2,"ab":3,"<0x41>":4},"merges":["a b"]})",
    R"({"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1],["b",-2.5],["ab",-2],["\u2581",-3]],"byte_fallback":true})"};
constexpr const char* parts[] = {"added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                                 "decoder",      "truncation", "padding",       "model"};

void try_file(const Json& file, std::string_view text) {
  std::unique_ptr<HubTokenizer> tokenizer;
  if (refuses([&] { tokenizer = std::make_unique<HubTokenizer>(file, HubSettings{}, "the file"); }))
    return;
  const HubEncodeOptions options{.max_length = 8, .pad_to = 9};
  refuses([&] {  // a model may have no token for what is unknown
    const std::vector<Piece> pieces = tokenizer->pieces(text);
    std::vector<int32_t> ids;
    for (const Piece& piece : pieces) {
      check(piece.id >= 0 && piece.id < tokenizer->vocabulary());
      check(piece.begin >= 0 && piece.end <= static_cast<int64_t>(text.size()));
      ids.push_back(piece.id);
    }
    check(ids == tokenizer->encode(text));
    tokenizer->decode(ids);
    tokenizer->text(ids);
    for (const TextSpan& span : tokenizer->encode_text(text).spans) {
      check(span.begin >= 0 && span.begin <= span.end &&
            span.end <= static_cast<int64_t>(text.size()));
    }
    const HubTokenizer again(parse_json(to_string(tokenizer->json())), {}, "the file");
    check(again.encode(text) == ids);
  });
  refuses([&] { tokenizer->encode_pair(text, text, options); });
  refuses([&] { tokenizer->windows(text, {.max_length = 8, .stride = 2}); });
  refuses([&] { tokenizer->encode_words(std::vector<std::string>{std::string(text), "", "a b"}); });
  for (int32_t id = 0; id < std::min<int64_t>(tokenizer->vocabulary(), 300); ++id) {
    tokenizer->word_role(id);
    tokenizer->find(tokenizer->token(id));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  prepare();
  const auto input = parts_of(text_of(data, size), 3);
  const std::string_view text = input[2].substr(0, 300);
  Json json;
  if (refuses([&] { json = parse_json(input[1]); })) return 0;
  try_file(json, text);
  const size_t which = input[0].empty() ? 0 : static_cast<uint8_t>(input[0][0]);
  for (const char* model : models) {
    Members file = {{"model", parse_json(model)}};
    const char* part = parts[which % std::size(parts)];
    if (part == std::string_view("model")) file.clear();
    file.push_back({part, json});
    if (input[0].size() > 1) {  // a second component, so that they meet
      refuses([&] { file.push_back({"pre_tokenizer", parse_json(input[0].substr(1))}); });
    }
    refuses([&] { try_file(parse_json(to_string(Json(file))), text); });
  }
  return 0;
}
