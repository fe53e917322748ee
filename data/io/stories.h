#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/io/formats.h"

namespace longspan {

/// Splits plain text into sentences: after ".", "!" or "?", with closing quotes and brackets, where
/// white space and then a capital, a digit, or an opening quote or bracket follow, but not after an
/// initial or a usual abbreviation such as "Dr."; and at every line break. Runs of white space
/// become one space; lines without text give no sentence.
std::vector<std::string> split_sentences(std::string_view text);

/// Reads a story of the CNN and Daily Mail corpora \cite hermann2015 : paragraphs, which are split
/// into sentences, and then highlights, each after a line "@highlight", which are the summary.
/// Throws IoError that names `path` if the text has a highlight mark without a highlight.
Document read_story(std::string_view text, const std::string& path);

/// Returns the files *.story of a folder, by name. Throws IoError if it cannot be read.
std::vector<std::string> list_stories(const std::string& folder);

}  // namespace longspan
