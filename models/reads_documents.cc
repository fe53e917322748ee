#include "models/reads_documents.h"

#include "core/error.h"

namespace longspan {

void PackedDocuments::add(const std::vector<std::vector<int32_t>>& document) {
  for (const std::vector<int32_t>& sentence : document) {
    tokens.insert(tokens.end(), sentence.begin(), sentence.end());
    sentences.push_back(std::ssize(sentence));
  }
  documents.push_back(std::ssize(document));
}

void SentenceTargets::add(int64_t slot, const std::vector<int32_t>& sentence,
                          const DocumentTokens& special) {
  require<ShapeError>(!sentence.empty(), "documents",
                      "a sentence without tokens; expected its end token");
  slots.push_back(slot);
  lengths.push_back(std::ssize(sentence));
  inputs.push_back(special.begin);
  inputs.insert(inputs.end(), sentence.begin(), sentence.end() - 1);
  targets.insert(targets.end(), sentence.begin(), sentence.end() - 1);
  targets.push_back(special.end);
}

}  // namespace longspan
