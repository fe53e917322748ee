#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/commands.h"
#include "app/step.h"
#include "data/io/files.h"
#include "train/plot.h"

namespace longspan {

/// What `longspan study NAME` measures.
struct Study {
  std::string_view name, about;
  /// Runs it; argv[0] is "longspan study" and argv[1] the name. Returns the exit status or throws.
  int (*run)(int argc, const char* const* argv);
};

int study_memory(int argc, const char* const* argv);
int study_budget(int argc, const char* const* argv);
int study_reversible(int argc, const char* const* argv);
int study_lsh(int argc, const char* const* argv);
int study_features(int argc, const char* const* argv);
int study_entmax(int argc, const char* const* argv);
int study_quality(int argc, const char* const* argv);

/// The flags that every study has.
inline const Flag study_out{"--out", "", "the folder for the table and the pictures: new or empty"};
inline const Flag study_format{
    "--format", "",
    "of pictures: png, svg or pdf, or several, as png,pdf; png where none is given"};

/// The new folder of a study, with a lock. Tables and pictures are written into it.
class StudyFolder {
 public:
  /// Takes --out and --format. Throws ValueError if there is none, or something in it.
  explicit StudyFolder(const CommandLine& line);
  /// Makes the folder and locks it. To be called when everything that was typed has been checked.
  void open();
  /// Writes a text, whose name has its ending.
  void write(const std::string& name, const std::string& text);
  /// Draws a picture, whose name has no ending, if there is a point in it.
  void draw(const std::string& name, const LinePlot& plot);
  /// Returns the path of a file that its caller writes.
  std::string add(const std::string& name);
  const std::string& path() const { return path_; }
  /// Prints which files were written.
  void say_files() const;

 private:
  std::string path_;
  PictureFormats formats_;
  std::optional<FolderLock> lock_;
  std::vector<std::string> files_;
};

/// Rows of text with columns, for a file of CSV.
class CsvTable {
 public:
  explicit CsvTable(std::string_view columns) : text_(std::string(columns) + "\n") {}
  template <class... Cells>
  void add(const Cells&... cells) {
    std::string row;
    ((row += row.empty() ? fmt::format("{}", cells) : fmt::format(",{}", cells)), ...);
    text_ += row + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// Adds a curve to a plot or, if it would hide one, only its name to that curve's name: if both
/// have the same x, and all y differ by at most the fraction `share`.
void add_curve(LinePlot& plot, Series curve, double share = 0);

/// Prints a line at once, so that long work shows where it is.
void say_progress(const std::string& text);

/// Splits a text at commas and spaces.
std::vector<std::string> words_of(const std::string& text);

/// The strategies that studies of memory compare where none are given.
inline constexpr std::string_view usual_strategies =
    "standard checkpoint reversible reversible+chunks";
/// Returns the words of --strategies: values of --memory, with or without a final "+chunks". Throws
/// ValueError on any other word.
std::vector<std::string> strategies_of(const std::string& text);
/// Returns the shape of a strategy: "reversible+chunks" is "reversible" with feed-forward layers in
/// F / D chunks.
StepShape shape_with(StepShape shape, const std::string& strategy, const RunConfig& config);

/// Throws ValueError, with the option's name, if there is none of `values` or one is below `least`
/// or above `most`.
void require_values(const std::vector<int64_t>& values, std::string_view option, int64_t least,
                    int64_t most);
/// Parses numbers with commas or spaces between them. Throws ValueError as require_values(), and on
/// what is no number.
std::vector<double> numbers_of(const std::string& text, std::string_view option, double least,
                               double most);

}  // namespace longspan
