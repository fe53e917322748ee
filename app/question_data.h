#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/task_data.h"
#include "data/choices.h"
#include "data/trivia.h"

namespace longspan {

/// The data of a run whose model chooses one of some candidates after reading several texts:
/// wikihop. What is longer than the model takes is shared out among windows, each of which has the
/// question and the candidates, whose scores are means over the windows \cite beltagy2020 .
class ChoiceData final : public TaskData {
 public:
  /// Throws ValueError where the model has no head for candidates or too few tokens.
  explicit ChoiceData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override;
  std::string items() const override { return "questions"; }
  std::string unit() const override { return "question"; }
  /// Throws ValueError where a question and its candidates alone fill a window.
  void prepare() override;
  Forward forward(int64_t i, Pass pass) const override;
  double bits(const std::string& part) const override { return scores(part).bits; }
  std::vector<int32_t> first_tokens(int64_t count) const override;

  struct Scores {
    double bits = 0;      ///< per question; NaN where there are none
    double accuracy = 0;  ///< share of questions whose likeliest candidate is right
  };
  Scores scores(const std::string& part) const;

 private:
  std::vector<ChoiceWindow> windows(const ChoiceQuestion& question) const;
  /// Scores [Q, C] of the candidates.
  Tensor choose(const ChoiceBatch& batch, Pass pass) const;

  const TrainingRun& run_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  ChoiceIds ids_;
  const Encoder& encoder_;
  std::vector<ChoiceQuestion> questions_[3];
  std::vector<std::string> warnings_;
};

/// The data of a run whose model finds answers in documents: triviaqa. Every document of a question
/// is read by itself, as many of its first tokens as the model takes \cite beltagy2020 ; all places
/// where an alias of the answer stands are right, and what none of them is in is not trained on.
class SpanData final : public TaskData {
 public:
  /// Throws ValueError where the model has no head for spans or too few tokens.
  explicit SpanData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  /// Questions with each of their documents.
  int64_t size(const std::string& part) const override;
  std::string items() const override { return "documents of questions"; }
  std::string unit() const override { return "place"; }
  /// Throws IoError where a document is missing.
  void prepare() override;
  Forward forward(int64_t i, Pass pass) const override;
  /// Of what has an answer in its window: bits of the right starts, and of the right ends.
  double bits(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

  struct Scores {
    double exact = 0, f1 = 0;  ///< means over the questions, best alias of each
    int64_t questions = 0;
  };
  Scores scores(const std::string& part) const;

 private:
  struct Item {
    size_t question = 0, document = 0;
  };
  struct Window {
    SpanWindow window;
    std::string text;
    std::vector<Piece> pieces;  ///< of the text that the window has
    std::vector<SpanPlace> places;
  };
  struct Rows {
    EncoderInputs in;
    Tensor starts, ends;   // [B, n]
    int64_t tokens = 0;    // without padding
    int64_t answered = 0;  // rows that have an answer
  };
  std::string path_of(const Item& item, size_t part) const;
  Window window(const Item& item, size_t part) const;
  Rows stacked(const std::vector<Window>& windows) const;
  SpanLogits spans(const Rows& rows, Pass pass) const;

  const TrainingRun& run_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  QuestionIds ids_;
  const Encoder& encoder_;
  std::string evidence_;
  std::vector<TriviaQuestion> questions_[3];
  std::vector<Item> items_[3];
  std::vector<std::string> warnings_;
};

}  // namespace longspan
