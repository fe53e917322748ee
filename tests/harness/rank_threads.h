#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/ranks/communicator.h"

namespace longspan::test {

/// Messages between threads that stand for ranks. A message is copied where both sides have met.
class Mailbox {
 public:
  struct Message {
    const void* from = nullptr;
    void* to = nullptr;
    int64_t bytes = 0;
    bool ended = false;
  };
  using Place = std::tuple<int, int, int>;  // sender, receiver, tag

  std::shared_ptr<Message> post(const Place& place, const void* from, void* to, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    std::deque<std::shared_ptr<Message>>& waiting = (from != nullptr ? receives_ : sends_)[place];
    if (waiting.empty()) {
      auto message = std::make_shared<Message>(Message{from, to, bytes});
      (from != nullptr ? sends_ : receives_)[place].push_back(message);
      return message;
    }
    auto message = waiting.front();
    waiting.pop_front();
    EXPECT_EQ(message->bytes, bytes) << "sizes of a message differ";
    std::memcpy(from != nullptr ? message->to : to, from != nullptr ? from : message->from,
                static_cast<size_t>(bytes));
    message->ended = true;
    return message;
  }
  bool ended(const Message& message) {
    const std::lock_guard lock(mutex_);
    return message.ended;
  }

 private:
  std::mutex mutex_;
  std::map<Place, std::deque<std::shared_ptr<Message>>> sends_, receives_;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(Mailbox& box, int rank) : box_(box), rank_(rank) {}
  void* send(int to, int tag, const void* data, int64_t bytes) override {
    return new std::shared_ptr(box_.post({rank_, to, tag}, data, nullptr, bytes));
  }
  void* receive(int from, int tag, void* data, int64_t bytes) override {
    return new std::shared_ptr(box_.post({from, rank_, tag}, nullptr, data, bytes));
  }
  bool ended(void* request) override {
    auto* const message = static_cast<std::shared_ptr<Mailbox::Message>*>(request);
    if (!box_.ended(**message)) return false;
    delete message;
    return true;
  }
  void end_all() override { std::abort(); }

 private:
  Mailbox& box_;
  int rank_;
};

/// Calls body(ranks) in so many threads, each with its own rank. What they throw fails the test.
inline void on_rank_threads(int size, const std::function<void(Communicator&)>& body) {
  Mailbox box;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Communicator ranks(std::make_unique<ThreadTransport>(box, rank), rank, size, rank, size,
                         "host");
      ranks.timeout = 20;
      try {
        body(ranks);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace longspan::test
