#include "ops/cost.h"

namespace longspan {
namespace {

/// What the ops of this thread have run since its first counter.
struct MacTotals {
  int64_t products = 0, attention = 0;
  int counters = 0;
};
thread_local MacTotals counted;

}  // namespace

MacCount::MacCount() : products_before_(counted.products), attention_before_(counted.attention) {
  ++counted.counters;
}
MacCount::~MacCount() { --counted.counters; }

int64_t MacCount::products() const { return counted.products - products_before_; }
int64_t MacCount::attention() const { return counted.attention - attention_before_; }

bool MacCount::active() { return counted.counters > 0; }
void MacCount::add_products(int64_t macs) {
  if (active()) counted.products += macs;
}
void MacCount::add_attention(int64_t macs) {
  if (active()) counted.attention += macs;
}

}  // namespace longspan
