#include "core/storage.h"

namespace longspan {

Storage::Storage(int64_t bytes, Device device, Category category)
    : bytes_(bytes), device_(device), category_(category) {
  // An empty tensor has an address, too, so that its view tests true.
  data_ = memory::allocate(device_, bytes_ > 0 ? bytes_ : 1, category_);
}

Storage::~Storage() { memory::release(device_, data_, bytes_ > 0 ? bytes_ : 1, category_); }

void Storage::set_category(Category category) {
  if (category == category_) return;
  memory::recategorize(device_, data_, bytes_ > 0 ? bytes_ : 1, category_, category);
  category_ = category;
}

void Storage::retain() {
  if (++holders_ == 1 && category_ == Category::other) set_category(Category::saved);
}

void Storage::release() {
  if (--holders_ == 0 && category_ == Category::saved) set_category(Category::other);
}

}  // namespace longspan
