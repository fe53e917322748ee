#pragma once

#include <string>
#include <vector>

#include "app/timeline.h"

namespace longspan {

/// Returns a page of HTML, complete in itself, that draws timelines on one scale of bytes: for each
/// the live bytes by category and by layer over a step, with marks where the backward pass and the
/// update begin, and the op at the peak. Pointer and arrow keys choose an instant, whose op and
/// bytes the page then tells, also to screen readers. Without scripts there are the pictures and
/// the peak. The numbers are in an element of type "application/json" with the id "timelines".
std::string timeline_page(const std::string& title, const std::vector<Timeline>& timelines);

/// Writes that page to a file. Throws IoError.
void write_timelines(const std::string& path, const std::string& title,
                     const std::vector<Timeline>& timelines);

}  // namespace longspan
