#pragma once

#include <string>
#include <vector>

#include "core/memory.h"

namespace longspan {

/// Memory of one training step of a strategy, from a trace.
struct Timeline {
  std::string title;
  struct Point {
    std::vector<double> bytes;  ///< in each band
  };
  struct Picture {
    std::string title;
    std::vector<std::string> bands;
    std::vector<Point> points;
  };
  std::vector<Picture> pictures;
};

/// Returns live bytes by category and by layer over the steps of a trace, added to those live
/// before it.
Timeline timeline_of(const MemoryTrace& trace, const Usage& before, const std::string& title);

/// Writes one self-contained HTML page with an SVG picture for each timeline. Throws IoError.
void write_timelines(const std::string& path, const std::string& title,
                     const std::vector<Timeline>& timelines);

}  // namespace longspan
