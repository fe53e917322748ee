#pragma once

#include <string>
#include <vector>

#include "core/memory.h"

namespace longspan {

/// One training step of a strategy, as a trace saw it.
struct Timeline {
  std::string title;
  struct Point {
    std::vector<double> bytes;  ///< of each band
  };
  struct Picture {
    std::string title;
    std::vector<std::string> bands;
    std::vector<Point> points;
  };
  std::vector<Picture> pictures;
};

/// Live bytes by category and by layer over the steps of a trace, on top of what was live before.
Timeline timeline_of(const MemoryTrace& trace, const Usage& before, const std::string& title);

/// Writes one self-contained HTML page with an SVG picture for each. Throws IoError.
void write_timelines(const std::string& path, const std::string& title,
                     const std::vector<Timeline>& timelines);

}  // namespace longspan
