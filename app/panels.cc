#include "app/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "train/plot.h"

namespace longspan {

PanelPicture::PanelPicture(int64_t first_layer, int64_t layers, int64_t heads, int64_t rows,
                           int64_t columns)
    : first_layer_(first_layer),
      layers_(layers),
      heads_(heads),
      rows_(rows),
      columns_(columns),
      gap_(std::max<int64_t>(std::max(rows, columns) / 32, 2)) {
  const int64_t cells = (begin(layers_, rows_) - gap_) * (begin(heads_, columns_) - gap_);
  values_.assign(static_cast<size_t>(cells), std::nan(""));
}

void PanelPicture::set(int64_t layer, int64_t head, int64_t row, int64_t column, double share) {
  const int64_t width = begin(heads_, columns_) - gap_;
  const int64_t at = (begin(layer, rows_) + row) * width + begin(head, columns_) + column;
  values_[static_cast<size_t>(at)] = share;
}

void PanelPicture::write(const std::string& path, const Text& text, double exponent) const {
  const auto labels = [this](const char* name, int64_t first, int64_t panels, int64_t size) {
    std::vector<std::string> v(static_cast<size_t>(begin(panels, size) - gap_));
    for (int64_t i = 0; i < panels; ++i) {
      v[static_cast<size_t>(begin(i, size) + size / 2)] = fmt::format("{} {}", name, first + i);
    }
    return v;
  };
  write_heat_map(path, {.title = text.title,
                        .x_label = text.x_label,
                        .y_label = text.y_label,
                        .rows = begin(layers_, rows_) - gap_,
                        .columns = begin(heads_, columns_) - gap_,
                        .values = values_,
                        .row_labels = labels("layer", first_layer_, layers_, rows_),
                        .column_labels = labels("head", 0, heads_, columns_),
                        .low = 0,
                        .high = 1,
                        .exponent = exponent});
}

}  // namespace longspan
