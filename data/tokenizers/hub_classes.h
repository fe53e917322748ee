#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/json.h"

namespace longspan {

/// Settings by name, as in tokenizer_config.json.
using HubMembers = std::map<std::string, Json>;

/// What a tokenizer class of the package transformers makes of its settings.
struct HubClass {
  std::string name = {};  ///< the class that others are the same as, such as BertTokenizer
  std::vector<std::string> settings = {};  ///< the settings that determine its pipeline
  Json normalizer = {}, pre_tokenizer = {}, decoder = {}, post_processor = {};
  std::map<std::string, Json> tokens =
      {};  ///< its own *_token members: strings, or objects with flags
};

/// Returns the name of the class that builds a pipeline, e.g. BertTokenizer for
/// DistilBertTokenizerFast; "" for classes that take tokenizer.json as it is; "?" for unknown ones.
std::string hub_class_name(std::string_view tokenizer_class);
/// Returns the tokenizer class of a model type; "" if it has none of its own.
std::string class_of_model_type(std::string_view model_type);

/// Returns the class with these settings; its defaults apply where one is absent. `rules` are its
/// rules for characters, in Base64, or null. The post-processor gets its ids from `ids`, and is
/// null if a token has none.
HubClass hub_class(const std::string& name, const HubMembers& settings, const Json& rules,
                   const std::map<std::string, int64_t>& ids);

/// Returns a normalizer or pre-tokenizer in a form in which equal ones are equal, as text.
std::string canonical_form(const Json& component);

/// Returns the languages of mBART, in the order of their ids.
const std::vector<std::string>& mbart_languages();

}  // namespace longspan
