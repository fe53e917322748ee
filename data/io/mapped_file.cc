#include "data/io/mapped_file.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "core/error.h"

namespace longspan {
namespace {

/// The address range of a mapped file, and the message if it can no longer be read. Ranges are
/// reused and never freed, so the signal handler may walk the list while others are added and
/// removed.
struct MappedRange {
  std::atomic<const char*> begin{nullptr}, end{nullptr};  // null: free
  std::string message;
  MappedRange* next = nullptr;
};

std::atomic<MappedRange*> mapped_ranges{nullptr};
std::mutex writers;  // of `places`
struct sigaction previous_action;

void on_bus_error(int number, siginfo_t* info, void*) {
  const auto* at = static_cast<const char*>(info->si_addr);
  const bool fault = info->si_code > 0;  // otherwise another process sent the signal
  for (const MappedRange* p = mapped_ranges.load(); fault && p != nullptr; p = p->next) {
    if (at < p->begin.load() || at >= p->end.load()) continue;
    [[maybe_unused]] const ssize_t n = ::write(2, p->message.data(), p->message.size());
    _exit(1);
  }
  sigaction(SIGBUS, &previous_action, nullptr);  // the fault recurs
  if (!fault) raise(number);
}

void install_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGBUS, &action, &previous_action);
}

MappedRange* free_place() {
  for (MappedRange* p = mapped_ranges.load(); p != nullptr; p = p->next) {
    if (p->begin.load() == nullptr) return p;
  }
  auto* place = new MappedRange;
  place->next = mapped_ranges.load();
  mapped_ranges.store(place);
  return place;
}

class Mapping {
 public:
  Mapping(const File& file, const std::string& path, std::string_view op, int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)) {
    std::string message = fmt::format(
        "{}: {} had {} bytes when it was opened, and cannot be read on: it has been cut short, or "
        "its disk fails; bring the whole file back and start again\n",
        op, path, bytes);
    const std::lock_guard lock(writers);
    if (mapped_ranges.load() == nullptr) install_handler();
    place_ = free_place();
    void* const data = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    require<IoError>(data != MAP_FAILED, op, "cannot map {}: {}", path, error_text());
    data_ = static_cast<char*>(data);
    place_->message = std::move(message);
    place_->begin.store(data_);
    place_->end.store(data_ + bytes);
  }
  ~Mapping() {
    const std::lock_guard lock(writers);
    place_->end.store(nullptr);
    place_->begin.store(nullptr);
    munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const uint8_t> bytes() const {
    return {reinterpret_cast<const uint8_t*>(data_), bytes_};
  }

 private:
  char* data_ = nullptr;
  size_t bytes_;
  MappedRange* place_;
};

}  // namespace

FileBytes map_file(const File& file, const std::string& path, std::string_view op, int64_t bytes) {
  const auto mapping = std::make_shared<const Mapping>(file, path, op, bytes);
  return {mapping, mapping->bytes()};
}

}  // namespace longspan
