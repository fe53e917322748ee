#include "train/profiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "autograd/mode.h"
#include "core/error.h"
#include "core/kernels/matmul.h"
#include "data/io/files.h"
#include "data/io/json.h"

namespace longspan {
namespace {

constexpr double kSecond = 1e9;  // nanoseconds
// Scores and weighted sums are two products forward; backward has scores again, and the gradients
// of probabilities, queries, keys and values.
constexpr double kAttentionBackward = 2.5;

double seconds_of(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / kSecond; }

/// Adds what a kernel call did to the row of this name.
void add_call(std::vector<Profile::Row>& rows,
              std::map<std::pair<std::string, Direction>, size_t>& at, const Profile::Row& call) {
  const auto [place, fresh] = at.try_emplace({call.name, call.direction}, rows.size());
  if (fresh) rows.push_back({.name = call.name, .direction = call.direction});
  Profile::Row& row = rows[place->second];
  row.calls += call.calls;
  row.seconds += call.seconds;
  row.macs += call.macs;
  row.bytes += call.bytes;
  row.saved += call.saved;
  row.workspace = std::max(row.workspace, call.workspace);
}

}  // namespace

std::string_view name_of(Direction direction) {
  constexpr std::string_view names[] = {"forward", "again", "backward", "other"};
  return names[static_cast<size_t>(direction)];
}

Profiler::Profiler(Device device)
    : device_(device), start_(std::chrono::steady_clock::now().time_since_epoch().count()) {
  require(Watch::of_thread() == nullptr, "profile", "this thread is being profiled already");
  require(MemoryTrace::of(device) == nullptr, "profile", "the memory of {} is being traced already",
          name_of(device));
  number_of("");
  work_ = std::make_unique<WorkTimes>();
  memory_ = std::make_unique<MemoryTrace>(device);
  const Usage live = memory_tracker(device).live();
  live_ = live.bytes;
  Watch::set(this);
}

Profiler::~Profiler() { Watch::set(nullptr); }

int64_t Profiler::now() const {
  return std::chrono::steady_clock::now().time_since_epoch().count() - start_;
}

int Profiler::number_of(std::string_view text) {
  const auto known = numbers_.find(text);
  if (known != numbers_.end()) return known->second;
  const auto number = static_cast<int>(texts_.size());
  texts_.emplace_back(text);
  numbers_.emplace(text, number);
  return number;
}

bool Profiler::again() const {
  return autograd::replaying() && (nodes_.empty() || !nodes_.back().replaying);
}

int64_t Profiler::follow_memory() {
  const std::vector<MemoryTrace::Event>& all = memory_->events();
  constexpr auto workspace = static_cast<size_t>(Category::workspace);
  int64_t most = live_[workspace];
  for (; events_ < all.size(); ++events_) {
    const MemoryTrace::Event& e = all[events_];
    live_[static_cast<size_t>(e.category)] += e.bytes;
    if (e.category == Category::saved) saved_ += e.bytes;
    most = std::max(most, live_[workspace]);
  }
  return most;
}

void Profiler::begin(Kind kind, std::string_view name) {
  Slice s{.kind = kind, .name = number_of(name)};
  for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
    if (slices_[*open].kind != Kind::phase) continue;
    s.phase = static_cast<int>(*open);
    break;
  }
  const std::string& scope = Scope::path();
  s.scope = scope.empty() && !nodes_.empty() ? nodes_.back().scope : number_of(scope);
  open_.push_back(slices_.size());
  slices_.push_back(s);
  slices_.back().begin = now();
}

// What an exception has left open ends here too. A phase or layer that began before the profile has
// no slice.
Profiler::Slice* Profiler::end(Kind kind) {
  const int64_t time = now();
  const bool known =
      std::any_of(open_.begin(), open_.end(), [&](size_t i) { return slices_[i].kind == kind; });
  while (known) {
    Slice& s = slices_[open_.back()];
    s.end = time;
    open_.pop_back();
    if (s.kind == kind) return &s;
  }
  return nullptr;
}

void Profiler::kernel_begins(std::string_view kernel) {
  if (waiting_) return;
  follow_memory();
  begin(Kind::kernel, kernel);
}

void Profiler::kernel_ends(std::span<const Operand> operands) {
  if (waiting_) return;
  if (device_.kind == DeviceKind::cuda) {
    waiting_ = true;
    wait_for_device(device_);
    waiting_ = false;
  }
  Slice* const ended = end(Kind::kernel);
  if (ended == nullptr) return;
  Slice& s = *ended;
  const int64_t held = live_[static_cast<size_t>(Category::workspace)];
  s.workspace = follow_memory() - held;
  s.live = live_;
  for (const Operand& o : operands) s.bytes += o.bytes;
  const std::string& name = texts_[static_cast<size_t>(s.name)];
  if (name == kernels::matmul.name() || name == kernels::products.name()) {
    static const size_t each = kernels::Product::tensors();
    for (size_t i = 0; i + each <= operands.size(); i += each) {
      s.macs += operands[i + 2].numel * operands[i].last;
    }
  }
  if (!nodes_.empty() && !again()) {
    s.direction = Direction::backward;
    s.op = nodes_.back().op;
  }
  if (!open_.empty() && slices_[open_.back()].kind == Kind::kernel) {
    slices_[open_.back()].inner += s.end - s.begin;
  }
}

void Profiler::close_op() {
  follow_memory();
  for (size_t i = first_of_op_; i < slices_.size(); ++i) {
    if (slices_[i].kind == Kind::kernel && slices_[i].op == 0) slices_[i].op = slices_[i].name;
  }
  first_of_op_ = slices_.size();
  saved_ = 0;
  attention_ = macs_.attention();
}

void Profiler::op_ends(std::string_view op, std::span<const int64_t> /*sizes*/) {
  if (waiting_ || (!nodes_.empty() && !again())) return;  // a step of a node's backward function
  follow_memory();
  const int name = number_of(op);
  Slice* longest = nullptr;  // of what is no product
  Slice* last = nullptr;
  for (size_t i = first_of_op_; i < slices_.size(); ++i) {
    Slice& s = slices_[i];
    if (s.kind != Kind::kernel || s.op != 0) continue;
    s.op = name;
    const bool trains =
        s.phase < 0 ||
        texts_[static_cast<size_t>(slices_[static_cast<size_t>(s.phase)].name)] == "forward";
    s.direction = again() ? Direction::again : trains ? Direction::forward : Direction::other;
    last = &s;
    if (s.macs == 0 && (longest == nullptr || s.end - s.begin > longest->end - longest->begin)) {
      longest = &s;
    }
  }
  if (last != nullptr) last->saved = std::max<int64_t>(saved_, 0);
  const int64_t attention = macs_.attention() - attention_;
  if (attention > 0 && longest != nullptr) {
    longest->macs = attention;
    if (autograd::recording()) attention_of_[{name, longest->scope}].push_back(attention);
  }
  close_op();
}

void Profiler::node_begins(std::string_view op, const std::string& scope) {
  close_op();
  nodes_.push_back({number_of(op), number_of(scope), autograd::replaying()});
  begin(Kind::node, op);
  slices_.back().scope = nodes_.back().scope;
}

void Profiler::node_ends() {
  close_op();
  const Slice* const ended = nodes_.empty() ? nullptr : end(Kind::node);
  if (ended == nullptr) return;
  const RunningNode node = nodes_.back();
  const auto first = static_cast<size_t>(ended - slices_.data());
  nodes_.pop_back();
  // Nodes of one op in one scope run in the reverse order of their forward passes.
  const auto attention = attention_of_.find({node.op, node.scope});
  if (attention == attention_of_.end() || attention->second.empty()) return;
  const int64_t forward = attention->second.back();
  attention->second.pop_back();
  Slice* longest = nullptr;
  for (size_t i = first; i < slices_.size(); ++i) {
    Slice& s = slices_[i];
    if (s.kind != Kind::kernel || s.op != node.op || s.macs != 0) continue;
    if (s.direction != Direction::backward) continue;
    if (longest == nullptr || s.end - s.begin > longest->end - longest->begin) longest = &s;
  }
  if (longest == nullptr) return;
  longest->macs = static_cast<int64_t>(kAttentionBackward * static_cast<double>(forward));
}

void Profiler::scope_begins() {
  const std::string& path = Scope::path();
  begin(Kind::scope, path);
}
void Profiler::scope_ends() { end(Kind::scope); }

void Profiler::phase_begins(std::string_view phase) {
  close_op();
  if (phase == "forward") attention_of_.clear();  // nodes that have not run backward will not
  begin(Kind::phase, phase);
}
void Profiler::phase_ends() {
  close_op();
  const Slice* const s = end(Kind::phase);
  if (s != nullptr && s->phase >= 0)
    slices_[static_cast<size_t>(s->phase)].inner += s->end - s->begin;
}

Profile Profiler::profile() const {
  Profile p;
  p.seconds = seconds_of(now());
  std::map<std::pair<std::string, Direction>, size_t> op_at, layer_at;
  std::map<std::string, size_t> phase_at;
  double in_phases = 0, kernels_outside = 0;
  const auto text = [&](int number) { return texts_[static_cast<size_t>(number)]; };
  for (const Slice& s : slices_) {
    if (s.end == 0) continue;  // open
    if (s.kind == Kind::phase) {
      const auto [place, fresh] = phase_at.try_emplace(text(s.name), p.phases.size());
      if (fresh) p.phases.push_back({.name = text(s.name)});
      Profile::PhaseRow& row = p.phases[place->second];
      ++row.calls;
      row.seconds += seconds_of(s.end - s.begin - s.inner);
      if (s.phase < 0) in_phases += seconds_of(s.end - s.begin);
    }
    if (s.kind != Kind::kernel) continue;
    const double own = seconds_of(s.end - s.begin - s.inner);
    if (s.phase < 0) kernels_outside += own;
    if (s.phase >= 0)
      p.phases[phase_at.at(text(slices_[static_cast<size_t>(s.phase)].name))].in_kernels += own;
    Profile::Row call{.name = text(s.op != 0 ? s.op : s.name),
                      .direction = s.direction,
                      .calls = 1,
                      .seconds = own,
                      .macs = s.macs,
                      .bytes = s.bytes,
                      .saved = s.saved,
                      .workspace = s.workspace};
    add_call(p.ops, op_at, call);
    call.name = text(s.scope);
    if (call.name.empty()) call.name = "(no layer)";
    add_call(p.layers, layer_at, call);
  }
  std::stable_sort(p.ops.begin(), p.ops.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  p.outside = std::max(0.0, p.seconds - in_phases - kernels_outside);
  const double waited = seconds_of(work_->waited());
  p.threads.push_back({.busy = p.seconds - waited, .idle = waited});
  for (size_t i = 1; i < work_->spans().size(); ++i) {
    double busy = 0;
    for (const WorkTimes::Span& span : work_->spans()[i]) busy += seconds_of(span.end - span.begin);
    p.threads.push_back({.busy = busy, .idle = p.seconds - busy});
  }
  return p;
}

double Profile::in_kernels() const {
  double sum = 0;
  for (const Row& row : ops) sum += row.seconds;
  return sum;
}

double Profile::between_kernels() const { return seconds - outside - in_kernels(); }

std::vector<Profile::Row> merged_layers(const std::vector<Profile::Row>& layers) {
  std::vector<Profile::Row> all;
  std::map<std::pair<std::string, Direction>, size_t> at;
  for (Profile::Row row : layers) {
    std::string name;
    for (size_t i = 0; i < row.name.size();) {
      const size_t end = std::min(row.name.find('.', i), row.name.size());
      const std::string part = row.name.substr(i, end - i);
      const bool number =
          !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
      name += (name.empty() ? "" : ".") + (number ? std::string("*") : part);
      i = end + 1;
    }
    row.name = name;
    add_call(all, at, row);
  }
  return all;
}

namespace {

std::string bytes_or_dash(int64_t bytes) {
  if (bytes <= 0) return "-";
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

/// A line of a table: what a row did, and its share of `seconds`.
std::string line_of(const Profile::Row& row, double seconds, double peak) {
  const double rate = row.seconds > 0 ? static_cast<double>(row.macs) / row.seconds : 0;
  return fmt::format(
      "{:<36} {:<8} {:>7} {:>10.2f} {:>6.1f} {:>8} {:>6} {:>10} {:>9} {:>9}\n", row.name,
      name_of(row.direction), row.calls, 1e3 * row.seconds, 100 * row.seconds / seconds,
      row.macs > 0 ? fmt::format("{:.1f}", 1e-9 * rate) : "-",
      row.macs > 0 && peak > 0 ? fmt::format("{:.0f} %", 100 * rate / peak) : "-",
      bytes_or_dash(row.bytes), bytes_or_dash(row.saved), bytes_or_dash(row.workspace));
}

std::string head_of(std::string_view what) {
  return fmt::format("{:<36} {:<8} {:>7} {:>10} {:>6} {:>8} {:>6} {:>10} {:>9} {:>9}\n", what, "",
                     "calls", "ms", "%", "GMAC/s", "peak", "MiB moved", "saved", "workspace");
}

std::string other_line(const std::string& name, double part, double seconds) {
  return fmt::format("{:<53} {:>10.2f} {:>6.1f}\n", name, 1e3 * part, 100 * part / seconds);
}

}  // namespace

std::string to_string(const Profile& p, double peak) {
  constexpr size_t most = 30;
  std::string text = head_of("op");
  Profile::Row rest{.name = "(other ops)", .direction = Direction::other};
  for (size_t i = 0; i < p.ops.size(); ++i) {
    if (i < most) {
      text += line_of(p.ops[i], p.seconds, peak);
      continue;
    }
    rest.calls += p.ops[i].calls;
    rest.seconds += p.ops[i].seconds;
    rest.bytes += p.ops[i].bytes;
  }
  if (rest.calls > 0) text += line_of(rest, p.seconds, 0);
  text += other_line("(between kernels)", p.between_kernels(), p.seconds);
  text += other_line("(outside of phases)", p.outside, p.seconds);
  text += other_line("all", p.seconds, p.seconds);
  text += "\n" + head_of("layer");
  for (const Profile::Row& row : merged_layers(p.layers)) text += line_of(row, p.seconds, peak);
  text += fmt::format("\n{:<36} {:>16} {:>10} {:>6} {:>12}\n", "phase", "calls", "ms", "%",
                      "in kernels");
  for (const Profile::PhaseRow& row : p.phases) {
    text += fmt::format("{:<36} {:>16} {:>10.2f} {:>6.1f} {:>10.1f} %\n", row.name, row.calls,
                        1e3 * row.seconds, 100 * row.seconds / p.seconds,
                        row.seconds > 0 ? 100 * row.in_kernels / row.seconds : 0);
  }
  text += fmt::format("\n{:<36} {:>16} {:>10} {:>6}\n", "thread", "busy ms", "idle ms", "idle %");
  for (size_t i = 0; i < p.threads.size(); ++i) {
    const Profile::Thread& t = p.threads[i];
    text += fmt::format("{:<36} {:>16.2f} {:>10.2f} {:>6.1f}\n", i, 1e3 * t.busy, 1e3 * t.idle,
                        100 * t.idle / p.seconds);
  }
  return text;
}

std::string to_csv(const std::vector<Profile::Row>& rows) {
  std::string text = "name,direction,calls,seconds,macs,bytes,saved,workspace\n";
  for (const Profile::Row& r : rows) {
    text += fmt::format("{},{},{},{:.9f},{},{},{},{}\n", r.name, name_of(r.direction), r.calls,
                        r.seconds, r.macs, r.bytes, r.saved, r.workspace);
  }
  return text;
}

void Profiler::write_trace(const std::string& path) const {
  fmt::memory_buffer out;
  const auto add = [&](const std::string& event) {
    fmt::format_to(std::back_inserter(out), "{}{}",
                   out.size() == 0 ? "{\"traceEvents\":[\n" : ",\n", event);
  };
  const auto quoted = [](std::string_view text) { return to_string(Json(std::string(text))); };
  const auto micros = [](int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); };
  add(R"({"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"longspan"}})");
  for (size_t i = 0; i < work_->spans().size(); ++i) {
    add(fmt::format(R"({{"ph":"M","name":"thread_name","pid":1,"tid":{},"args":{{"name":"{}"}}}})",
                    i, i == 0 ? "main" : fmt::format("thread {}", i)));
  }
  constexpr std::string_view kinds[] = {"phase", "layer", "node", "kernel"};
  for (const Slice& s : slices_) {
    if (s.end == 0) continue;
    std::string name = texts_[static_cast<size_t>(s.name)];
    if (s.kind == Kind::node) name += " backward";
    std::string args = fmt::format(R"("layer":{})", quoted(texts_[static_cast<size_t>(s.scope)]));
    if (s.kind == Kind::kernel) {
      args += fmt::format(R"(,"op":{},"direction":"{}","macs":{},"bytes":{})",
                          quoted(texts_[static_cast<size_t>(s.op)]), name_of(s.direction), s.macs,
                          s.bytes);
    }
    add(fmt::format(
        R"({{"ph":"X","name":{},"cat":"{}","pid":1,"tid":0,"ts":{},"dur":{},"args":{{{}}}}})",
        quoted(name), kinds[static_cast<size_t>(s.kind)], micros(s.begin), micros(s.end - s.begin),
        args));
    if (s.kind != Kind::kernel) continue;
    std::string values;
    for (size_t c = 0; c < s.live.size(); ++c) {
      values += fmt::format("{}\"{}\":{}", c == 0 ? "" : ",", name_of(static_cast<Category>(c)),
                            s.live[c]);
    }
    add(fmt::format(R"({{"ph":"C","name":"memory","pid":1,"tid":0,"ts":{},"args":{{{}}}}})",
                    micros(s.end), values));
  }
  for (size_t i = 1; i < work_->spans().size(); ++i) {
    for (const WorkTimes::Span& span : work_->spans()[i]) {
      add(fmt::format(R"({{"ph":"X","name":"job","cat":"job","pid":1,"tid":{},"ts":{},"dur":{}}})",
                      i, micros(std::max<int64_t>(span.begin - start_, 0)),
                      micros(span.end - std::max(span.begin, start_))));
    }
  }
  fmt::format_to(std::back_inserter(out), "\n],\"displayTimeUnit\":\"ms\"}}\n");
  replace_file(path, {out.data(), out.size()}, "trace");
}

}  // namespace longspan
