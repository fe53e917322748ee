#include "core/ranks/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "tests/harness/messages.h"
#include "tests/harness/rank_threads.h"

namespace longspan::test {
namespace {

TEST(Communicator, OneProcessHasNobodyToTalkTo) {
  Communicator alone;
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.gather("me", "names"), std::vector<std::string>{"me"});
  EXPECT_EQ(alone.from_first("me", "names"), "me");
  auto nothing = alone.start({}, {}, "nothing");
  alone.wait(nothing);
  EXPECT_EQ(alone.sent_bytes(), 0);
  EXPECT_EQ(launched().processes, 1);
  EXPECT_EQ(open_communicator()->size(), 1);
}

TEST(Communicator, GathersTextsOfAnySize) {
  for (const int size : {2, 3, 5}) {
    on_rank_threads(size, [&](Communicator& ranks) {
      for (int turn = 0; turn < 3; ++turn) {
        const auto text = [&](int r) {
          return std::string(static_cast<size_t>(r * turn), static_cast<char>('a' + r));
        };
        const std::vector<std::string> all = ranks.gather(text(ranks.rank()), "texts");
        for (int r = 0; r < size; ++r) EXPECT_EQ(all[static_cast<size_t>(r)], text(r));
        EXPECT_EQ(ranks.from_first(text(ranks.rank() + 1), "text"), text(1));
      }
    });
  }
}

TEST(Communicator, ExchangesPartsInOrderAndCountsThem) {
  on_rank_threads(3, [](Communicator& ranks) {
    const int me = ranks.rank();
    std::array<std::array<int, 2>, 3> out{}, in{};
    std::vector<Communicator::Send> send;
    std::vector<Communicator::Receive> receive;
    for (int r = 0; r < 3; ++r) {
      if (r == me) continue;
      const auto at = static_cast<size_t>(r);
      out[at] = {100 * me + r, -me};
      for (size_t k = 0; k < 2; ++k) {
        send.push_back({r, &out[at][k], sizeof(int)});
        receive.push_back({r, &in[at][k], sizeof(int)});
      }
    }
    auto pending = ranks.start(send, receive, "numbers");
    ranks.wait(pending);
    EXPECT_TRUE(ranks.poll(pending));
    for (int r = 0; r < 3; ++r) {
      if (r == me) continue;
      EXPECT_EQ(in[static_cast<size_t>(r)], (std::array<int, 2>{100 * r + me, -r}));
    }
    EXPECT_EQ(ranks.sent_messages(), 4);
    EXPECT_EQ(ranks.sent_bytes(), 16);
  });
}

TEST(Communicator, NamesWhoDoesNotCome) {
  on_rank_threads(3, [](Communicator& ranks) {
    if (ranks.rank() == 2) return;
    ranks.timeout = 0.2;
    EXPECT_TRUE(contains(message_of<RankLost>([&] { ranks.gather("x", "gradients of step 7"); }),
                         "gradients of step 7 did not come within 0.2 s, from rank 2"));
  });
}

}  // namespace
}  // namespace longspan::test
