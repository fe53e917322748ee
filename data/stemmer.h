#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// Returns the stem of a word of a to z and 0 to 9 after the rules of \cite porter1980 , with the
/// extensions of the package nltk, which the package rouge_score uses: "dies" gives "die", "flies"
/// gives "fli", "enjoy" stays, and some irregular words have stems of their own. Words of one or
/// two letters stay. Other characters count as consonants.
std::string porter_stem(std::string_view word);

}  // namespace longspan
