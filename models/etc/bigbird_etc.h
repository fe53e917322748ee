#pragma once

#include <string_view>

#include "models/etc/etc.h"
#include "models/model_spec.h"

namespace longspan {

/// BigBird with extra global tokens (ETC) \cite zaheer2020 : ETC's model with a window radius of
/// one block and with EtcConfig::n_random random blocks among long tokens. The paper's experiments
/// use no random blocks, so its presets are plain ETC.
EtcConfig bigbird_etc_preset(std::string_view name);

/// Entry under the name that programs use.
const ModelEntry& bigbird_etc_entry();

}  // namespace longspan
