#include "core/error.h"
#include "data/io/files.h"
#include "data/tokenizers/hub_tokenizer.h"

namespace longspan {

void write_hub_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  const auto* hub = dynamic_cast<const HubTokenizer*>(&tokenizer);
  require(hub != nullptr, "tokenizer", "not yet");
  make_folders(folder, "tokenizer");
  replace_file(folder + "/tokenizer.json", to_string(hub->json()), "tokenizer");
}

}  // namespace longspan
