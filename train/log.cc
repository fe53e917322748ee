#include "train/log.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int64_t max_metrics_bytes = int64_t{1} << 32;

/// The rows of a JSON lines text, and their lines.
struct Rows {
  std::vector<Json> rows;
  std::vector<std::string_view> lines;
};

Rows parse_rows(std::string_view text) {
  Rows all;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    try {
      Json row = parse_json(line);
      if (!row.is_object()) continue;
      all.rows.push_back(std::move(row));
      all.lines.push_back(line);
    } catch (const ValueError&) {
    }
  }
  return all;
}

std::atomic<int> stop_signal{0};
struct sigaction before_int, before_term, before_user;

void on_signal(int number) {
  int none = 0;
  if (!stop_signal.compare_exchange_strong(none, number)) _exit(128 + number);
  constexpr std::string_view answer =
      "\nstopping: what is under way is finished first; a second signal ends it at once\n";
  const int error = errno;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, answer.data(), answer.size());
  errno = error;
}
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

double bits(double nats) { return nats / std::numbers::ln2; }

void Meter::add(int64_t tokens) {
  tokens_ += tokens;
  ++steps_;
}

double Meter::seconds() const { return seconds_since(start_); }

double Meter::tokens_per_second() const {
  const double s = seconds();
  return s > 0 ? static_cast<double>(tokens_) / s : 0;
}

double Meter::seconds_for(int64_t steps) const {
  return steps_ > 0 ? seconds() / static_cast<double>(steps_) * static_cast<double>(steps) : 0;
}

std::string format_bytes(int64_t bytes) {
  constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 999.5 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  return value < 9.95 ? fmt::format("{:.1f} {}", value, units[unit])
                      : fmt::format("{:.0f} {}", value, units[unit]);
}

std::string format_seconds(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::min(seconds, 1e15)));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string to_string(const Progress& p) {
  std::string out =
      p.steps > 0 ? fmt::format("step {}/{}", p.step, p.steps) : fmt::format("step {}", p.step);
  const bool tokens = p.unit != nullptr && p.unit->per_target != 1;
  if (!std::isnan(p.loss))
    out += fmt::format("  {} {:.4f}", tokens ? "loss/token" : "loss", p.loss);
  if (p.unit != nullptr && !std::isnan(p.unit->bits(p.loss))) {
    out += fmt::format("  {} {:.3f}", p.unit->label(), p.unit->bits(p.loss));
    if (p.perplexity) out += fmt::format("  ppl {:.4g}", std::exp(p.loss));
  }
  for (const auto& [name, value] : p.auxiliary) out += fmt::format("  {} {:.1e}", name, value);
  if (p.gradient_norm >= 0) out += fmt::format("  norm {:.2f}", p.gradient_norm);
  if (p.learning_rate >= 0) out += fmt::format("  lr {:.1e}", p.learning_rate);
  if (p.tokens_per_second >= 0) {
    out += p.tokens_per_second < 9'999.5
               ? fmt::format("  {:.0f} tok/s", p.tokens_per_second)
               : fmt::format("  {:.1f}k tok/s", p.tokens_per_second / 1000);
  }
  if (p.seconds_left >= 0) out += fmt::format("  eta {}", format_seconds(p.seconds_left));
  if (p.peak_bytes >= 0) out += fmt::format("  peak {}", format_bytes(p.peak_bytes));
  return out;
}

Log::Log(const std::string& run, const LogOptions& options) : run_(run), options_(options) {
  if (options.silent) {
    options_.status = nullptr;
    return;
  }
  make_folders(run, "log");
  sweep(run);
  const std::string path = run + "/metrics.jsonl";
  if (access(path.c_str(), F_OK) == 0) {
    std::string kept;
    if (options.resume_step >= 0) {
      const std::string text = read_file(path, "log", max_metrics_bytes);
      const Rows all = parse_rows(text);
      for (size_t i = 0; i < all.rows.size(); ++i) {
        const Json* step = all.rows[i].find("step");
        if (step == nullptr || !step->is_integer() || step->integer() > options.resume_step) {
          continue;
        }
        kept += all.lines[i];
        kept += '\n';
      }
    }
    replace_file(path, kept, "log");
  }
  metrics_ = open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
  require<IoError>(static_cast<bool>(metrics_), "log", "cannot write {}: {}", path, error_text());
  terminal_ = options.status != nullptr && isatty(fileno(options.status)) == 1;
  if (options.tensorboard) events_.emplace(run + "/tensorboard", options.resume_step);
}

Log::~Log() { end_line(); }

void Log::write_config(const Json& config) {
  if (options_.silent) return;
  replace_file(run_ + "/config.toml", to_toml(config), "log");
}

void Log::row(int64_t step, const Members& figures) {
  if (options_.silent) return;
  Members all{{"step", step}};
  all.insert(all.end(), figures.begin(), figures.end());
  const std::string line = to_string(Json(std::move(all))) + "\n";
  write_exactly(metrics_, run_ + "/metrics.jsonl", "log", line.data(),
                static_cast<int64_t>(line.size()));
  if (events_) events_->add(step, figures);
}

void Log::show(const Progress& progress, bool last) {
  if (options_.status != nullptr) show_line(to_string(progress), last);
}

void Log::show_line(const std::string& line, bool last) {
  if (options_.status == nullptr) return;
  const double wait = terminal_ ? 0.1 : options_.plain_seconds;
  if (!last && shown_ && seconds_since(last_) < wait) return;
  shown_ = true;
  last_ = Clock::now();
  line_ = line;
  if (terminal_) {
    draw();
    if (last) end_line();
  } else {
    std::fprintf(options_.status, "%s\n", line_.c_str());
    std::fflush(options_.status);
  }
}

void Log::say(std::string_view text) {
  if (options_.status == nullptr) return;
  if (drawn_) clear();
  if (terminal_) shown_ = false;  // the next call of show() draws
  // Errors can be shown as they are, whatever files have put into their texts.
  std::fprintf(options_.status, "%s\n", Error(std::string(text)).what());
  std::fflush(options_.status);
}

void Log::end_line() {
  if (!drawn_) return;
  drawn_ = false;
  std::fputc('\n', options_.status);
  std::fflush(options_.status);
}

void Log::clear() {
  std::fputs("\r\x1b[K", options_.status);
  drawn_ = false;
}

void Log::draw() {
  struct winsize window;
  size_t width = line_.size();
  if (ioctl(fileno(options_.status), TIOCGWINSZ, &window) == 0 && window.ws_col > 1) {
    width = std::min<size_t>(width, window.ws_col - 1u);  // a wrapped line cannot be redrawn
  }
  std::fprintf(options_.status, "\r%.*s\x1b[K", static_cast<int>(width), line_.c_str());
  std::fflush(options_.status);
  drawn_ = true;
}

std::vector<Json> read_rows(const std::string& path) {
  return parse_rows(read_file(path, "log", max_metrics_bytes)).rows;
}

std::string append_row(const std::string& path, const Members& row) {
  const std::string line = to_string(Json(row));
  const File file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  require<IoError>(static_cast<bool>(file), "log", "cannot write {}: {}", path, error_text());
  flock(file.get(), LOCK_EX);  // without locks, rows are whole only with a single writer
  const int64_t size = size_of_file(file, path, "log");
  char last = '\n';
  if (size > 0) read_exactly(file, path, "log", size - 1, &last, 1);
  // A line that a crash has cut off stays a separate line.
  const std::string text = (last == '\n' ? "" : "\n") + line + "\n";
  try {
    write_exactly(file, path, "log", text.data(), static_cast<int64_t>(text.size()));
  } catch (const IoError&) {
    [[maybe_unused]] const int cut = ftruncate(file.get(), size);
    throw;
  }
  return line;
}

Members to_members(const Usage& usage) {
  Members members{{"total", usage.total()}};
  for (int i = 0; i < category_count; ++i) {
    const auto category = static_cast<Category>(i);
    members.push_back({std::string(name_of(category)), usage[category]});
  }
  return members;
}

Usage to_usage(const Json& members) {
  Usage usage;
  for (int i = 0; i < category_count; ++i) {
    const auto category = static_cast<Category>(i);
    if (const Json* bytes = members.find(name_of(category))) usage[category] = bytes->integer();
  }
  const int64_t total = members["total"].integer();
  require(usage.total() == total, "log", "categories hold {} of {} bytes", usage.total(), total);
  return usage;
}

std::string write_summary(const std::string& run, const Members& figures) {
  make_folders(run, "log");
  std::string line = to_string(Json(figures));
  replace_file(run + "/summary.json", line + "\n", "log");
  return line;
}

StopSignal::StopSignal() {
  stop_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &before_int);
  sigaction(SIGTERM, &action, &before_term);
  sigaction(SIGUSR1, &action, &before_user);  // mpirun passes it on and does not kill after it
}

StopSignal::~StopSignal() {
  sigaction(SIGINT, &before_int, nullptr);
  sigaction(SIGTERM, &before_term, nullptr);
  sigaction(SIGUSR1, &before_user, nullptr);
}

int StopSignal::number() const { return stop_signal; }

}  // namespace longspan
