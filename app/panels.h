#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

/// A picture with a panel of `rows` x `columns` cells for each layer and head: layers below one
/// another, heads side by side, with a gap between. Cells that are never set are paper.
class PanelPicture {
 public:
  PanelPicture(int64_t first_layer, int64_t layers, int64_t heads, int64_t rows, int64_t columns);

  /// The share, 0 to 1, of a cell; layers and heads are counted from the first that is drawn.
  void set(int64_t layer, int64_t head, int64_t row, int64_t column, double share);

  struct Text {
    std::string title, x_label, y_label;
  };
  /// Writes a PNG picture. `exponent` of the share gives the colour. Throws IoError.
  void write(const std::string& path, const Text& text, double exponent) const;

 private:
  int64_t begin(int64_t panel, int64_t size) const { return panel * (size + gap_); }

  int64_t first_layer_, layers_, heads_, rows_, columns_, gap_;
  std::vector<double> values_;
};

}  // namespace longspan
