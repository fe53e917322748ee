// Any bytes as files of data sets are read to the end or refused. The first byte selects the kind.

#include "data/data_sets.h"
#include "data/choices.h"
#include "data/io/stories.h"
#include "data/profiles.h"
#include "data/questions.h"
#include "data/trivia.h"
#include "tests/fuzz/input.h"

using namespace longspan;

namespace {

void read_corpus(const std::string& kind, const std::string& path) {
  const Corpus corpus = open_corpus(kind, {.root = {}, .data = kind + "=" + path});
  for (const CorpusPart* part : {&corpus.train, &corpus.valid, &corpus.test}) {
    for (int64_t i = 0; i < part->size(); ++i) {
      check((*part)[i] >= 0 && (*part)[i] < corpus.vocabulary);
    }
    if (part->size() < 9) continue;
    const SegmentBatches batches(*part, 1, part->record > 1 ? part->record : 4);
    batches.at(0);
    batches.at(12345);
  }
}

void read_labelled(const std::string& kind, const std::string& path) {
  const auto data =
      open_labelled(find_data_set(kind), {.root = {}, .data = kind + "=" + path}, "80/10/10", 1);
  for (size_t part = 0; part < 3; ++part) {
    for (int64_t i = 0; i < std::min<int64_t>(data->size(part), 50); ++i) {
      const Sample s = data->sample(part, i);
      check(static_cast<int64_t>(s.tokens.size()) == data->length());
      check(static_cast<int64_t>(s.targets.size()) == data->answers());
    }
  }
}

void read_answers(const std::vector<Question>& questions) {
  for (const Question& q : questions) {
    for (const Answer& answer : q.answers) {
      check(q.context.compare(static_cast<size_t>(answer.begin), answer.text.size(), answer.text) ==
            0);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("data_sets");
  prepare();
  if (size == 0) return 0;
  const std::string_view text = text_of(data + 1, size - 1);
  file.set(text);
  constexpr const char* corpora[] = {"bytes", "chars", "words",  "dna",
                                     "fasta", "wav",   "images", "pixels"};
  refuses([&] {
    const int kind = data[0] % 18;
    if (kind < 8) return read_corpus(corpora[kind], file.path);
    if (kind == 8) return read_labelled("promoter", file.path);
    if (kind == 9) return read_labelled("chromatin", file.path);
    if (kind == 10) {
      for (const ChoiceQuestion& q : read_wikihop(text, "input")) {
        check(q.answer < static_cast<int64_t>(q.candidates.size()));
      }
    }
    if (kind == 11) {
      for (const TriviaQuestion& q : read_triviaqa(text, "input")) {
        for (const std::string& document : q.documents) {
          check(document[0] != '/' && ("/" + document + "/").find("/../") == std::string::npos);
        }
      }
    }
    if (kind == 12) read_answers(read_squad(text, "input"));
    if (kind == 13) {
      const auto parts = parts_of(text, 2);
      read_documents(parts[0], parts[1], "input");
    }
    if (kind == 14) {
      const auto parts = parts_of(text, 2);
      const std::string alias(parts[0]);
      for (const Answer& a : find_aliases(parts[1], {&alias, 1})) {
        check(a.begin + static_cast<int64_t>(a.text.size()) <=
              static_cast<int64_t>(parts[1].size()));
      }
    }
    if (kind == 16) {
      const auto parts = parts_of(text, 2);
      std::vector<Document> all = read_documents(parts[0]);
      read_labels(parts[1], "input", all);
      for (const Document& d : all) check(d.labels.size() == d.article.size());
    }
    if (kind == 17) {
      const Document story = read_story(text, "input");
      for (const std::string& s : story.article) check(!s.empty() && split_sentences(s).size() > 0);
    }
    if (kind == 15) {
      const auto tokenizer = word_tokenizer(text.substr(0, text.size() / 2));
      tokenizer->decode(tokenizer->encode(text));
    }
  });
  return 0;
}
