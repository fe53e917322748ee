#pragma once

#include <string_view>

#include "models/etc.h"
#include "models/model_spec.h"

namespace longspan {

/// BigBird with global tokens of its own (ETC) \cite zaheer2020 : ETC's model, of whose windows the
/// radius is a block, and with EtcConfig::n_random random blocks among long tokens. The paper's
/// experiments have none of these, so that its presets are ETC's model and nothing else.
EtcConfig bigbird_etc_preset(std::string_view name);

/// By the name that programs use.
const ModelEntry& bigbird_etc_entry();

}  // namespace longspan
