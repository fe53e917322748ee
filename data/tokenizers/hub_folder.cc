#include "core/error.h"
#include "data/io/files.h"
#include "data/tokenizers/hub_tokenizer.h"

namespace longspan {

std::unique_ptr<HubTokenizer> open_hub_tokenizer(const std::string& folder,
                                                 const HubOptions& options) {
  const std::string path = folder + "/tokenizer.json";
  return std::make_unique<HubTokenizer>(parse_json(read_file(path, "tokenizer", 1 << 30)),
                                        HubSettings{}, path, options.special_in_text);
}

}  // namespace longspan
