// Limits of memory and time for connections, with a server on a free port.
#include "server/http/http.h"

#include <malloc.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/http/http_fixture.h"
#include "support/allocations.h"

namespace dsv4::server {

namespace {

using std::chrono::milliseconds;

constexpr std::string_view kChunked = "POST /echo HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";

// ---- Framing

TEST_F(Http, AChunkExtensionOrATrailerThatNeverEndsIsRefused) {
  Start();
  const std::string forever(4 << 20, 'x');
  for (const std::string& begin : {std::string("1;"), std::string("0\r\nx: "), std::string("0;")}) {
    HttpClient client(server_->port());
    client.Send(std::string(kChunked) + begin);
    client.Send(forever);  // the server cuts it off
    const std::string reply = client.Read();
    EXPECT_TRUE(reply.empty() || StatusLine(reply) == "HTTP/1.1 431") << begin << reply.substr(0, 100);
    EXPECT_EQ(WaitForDone(num_done() == 0 ? 1 : num_done()).status, 431);
  }
  EXPECT_EQ(num_handled_, 0);
}

TEST_F(Http, ManySmallExtensionsAndTrailerLinesCount) {
  Start();
  std::string chunks;
  for (int i = 0; i < 200; ++i) chunks += "1;" + std::string(1000, 'x') + "\r\na\r\n";
  EXPECT_EQ(StatusLine(Ask(std::string(kChunked) + chunks + "0\r\n\r\n")), "HTTP/1.1 431");
  // One chunk per byte is allowed.
  chunks.clear();
  for (int i = 0; i < 50000; ++i) chunks += "1\r\na\r\n";
  const std::string reply = Ask(std::string(kChunked) + chunks + "0\r\nx: y\r\n\r\n");
  EXPECT_EQ(StatusLine(reply), "HTTP/1.1 200");
  EXPECT_TRUE(reply.ends_with(std::string(50000, 'a')));
}

TEST_F(Http, HeaderLinesAreCountedAndHostIsNamedOnce) {
  Start();
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "a: b\r\n";
  EXPECT_EQ(StatusLine(Ask("GET / HTTP/1.1\r\n" + lines + "\r\n")), "HTTP/1.1 431");
  EXPECT_EQ(StatusLine(Ask("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")), "HTTP/1.1 400");
}

TEST_F(Http, WhatFollowsARefusalIsNotRead) {
  Start();
  HttpClient client(server_->port());
  std::string many = "GET /x HTTP/9.9\r\n\r\n";
  for (int i = 0; i < 2000; ++i) many += "GET /x HTTP/9.9\r\n\r\n";
  client.Send(many);
  bool takes = true;
  for (int i = 0; i < 1500 && takes; ++i) {  // sends while the server takes bytes
    takes = client.Send(many.substr(0, 100));
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_FALSE(takes);
  EXPECT_EQ(num_done(), 1u);
}

// ---- The gate and the budget

TEST_F(Http, TheGateDecidesBeforeTheBody) {
  Start();
  HttpClient client(server_->port());
  client.Send("POST /closed HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 100000\r\n\r\n");
  const std::string reply = client.Read();  // no byte of a body was sent
  EXPECT_EQ(StatusLine(reply), "HTTP/1.1 401");
  EXPECT_EQ(reply.find("100 Continue"), std::string::npos);
  EXPECT_NE(reply.find("Connection: close"), std::string::npos);
  EXPECT_EQ(num_handled_, 0);
  EXPECT_EQ(StatusLine(Ask("POST /echo HTTP/1.1\r\nContent-Length: 100001\r\n\r\n")), "HTTP/1.1 413");
}

TEST_F(Http, ARefusedRequestWithoutABodyKeepsItsConnection) {
  Start();
  const std::string reply = Ask("GET /closed HTTP/1.1\r\n\r\nGET /echo HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(StatusLine(reply), "HTTP/1.1 401");
  EXPECT_NE(reply.find("HTTP/1.1 200"), std::string::npos);
  EXPECT_NE(reply.find("\r\nDate: "), std::string::npos);
}

TEST_F(Http, BodiesHaveOneBudget) {
  Start({.max_body_total = 150000});
  const std::string head = "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
  HttpClient first(server_->port());
  first.Send(head + std::string(99999, 'a'));
  for (int i = 0; i < 2000 && server_->body_bytes() < 99999; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_GE(server_->body_bytes(), 99999u);
  const std::string refused = Ask(head + std::string(100000, 'b'));
  EXPECT_EQ(StatusLine(refused), "HTTP/1.1 503");
  EXPECT_NE(refused.find("--max-body-total"), std::string::npos);
  first.Send("a");
  EXPECT_EQ(StatusLine(first.Read()), "HTTP/1.1 200");
  EXPECT_EQ(server_->body_bytes(), 0u);
  EXPECT_EQ(StatusLine(Ask(head + std::string(100000, 'c'))), "HTTP/1.1 200");
}

TEST_F(Http, AnAnnouncedBodyTakesNothingBeforeItArrives) {
  Start({.max_body_total = 150000});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server_->port()));
    clients.back()->Send("POST /echo HTTP/1.1\r\nContent-Length: 100000\r\n\r\na");
  }
  EXPECT_EQ(StatusLine(Ask("POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 1\r\n\r\na")), "HTTP/1.1 200");
  EXPECT_LT(server_->body_bytes(), 1000u);
}

TEST_F(Http, RequestsThatNobodyReadsTheRepliesOfWait) {
  Start();
  HttpClient client(server_->port(), 4096);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "GET /large HTTP/1.1\r\n\r\n";  // 100 MB of replies
  client.Send(many);
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_LT(num_handled_, 20);  // up to what the sockets hold
}

TEST_F(Http, RequestsBehindOneWaitAndAreAnsweredInOrder) {
  Start();
  constexpr int kRequests = 400;
  const std::string padding(90000, '.');
  HttpClient client(server_->port(), 4096);
  std::atomic<int> num_sent{0};
  std::thread sender([&] {  // 36 MB, more than any socket holds
    for (int i = 0; i < kRequests; ++i) {
      const std::string body = std::to_string(i) + padding;
      if (!client.Send("POST /echo HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body))
        break;
      ++num_sent;
    }
  });
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_LT(num_sent, kRequests);
  EXPECT_LT(server_->body_bytes(), 2 * padding.size());  // of about one request
  std::string replies;
  size_t at = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::string expected = "\r\n\r\n" + std::to_string(i) + ".";
    size_t found = std::string::npos;
    while ((found = replies.find("\r\n\r\n", at)) == std::string::npos || replies.size() < found + expected.size()) {
      const std::string more = client.Read(kPatience, 65536);
      if (more.empty()) break;
      replies += more;
    }
    ASSERT_EQ(replies.substr(found, expected.size()), expected) << "reply " << i;
    at = found + expected.size();
  }
  sender.join();
  EXPECT_EQ(num_sent, kRequests);
  EXPECT_EQ(num_handled_, kRequests);
}

TEST_F(Http, AClientThatLeavesIsNoticedBehindRequestsThatAreNotRead) {
  Start();
  HttpClient client(server_->port());
  // More than is read after the first request, less than the sockets hold.
  client.Send("GET /hold HTTP/1.1\r\n\r\n" + std::string(110000, ' '));
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_EQ(num_done(), 0u);
  client.Leave();
  EXPECT_EQ(WaitForDone().status, 499);
  EXPECT_EQ(OnIoThread([this] { return server_->num_busy(); }), 0u);
  held_.reset();
}

// A client of HTTP/1.0 recognizes the end of a stream only by the end of the connection.
TEST_F(Http, AnOldClientsStreamEndsAtOnce) {
  Start();
  HttpClient client(server_->port());
  client.Send("GET /later HTTP/1.0\r\n\r\n");
  EXPECT_EQ(StatusLine(client.Read(kPatience, 12)), "HTTP/1.1 200");
  client.Read(milliseconds(200));  // everything written so far has arrived
  held_->FinishStream();
  held_.reset();
  client.Read();
  EXPECT_TRUE(client.ended());
}

// ---- Time

TEST_F(Http, AHeaderHasAnAbsoluteTime) {
  Start({.header_timeout = milliseconds(1000)});
  HttpClient client(server_->port());
  std::string reply;
  client.Send("GET / HTTP/1.1\r\n");
  for (int i = 0; i < 100 && reply.empty(); ++i) {  // fewer lines than a header may have
    client.Send("a: b\r\n");                        // never silent
    reply = client.Read(milliseconds(100), 12);
  }
  EXPECT_EQ(reply, "HTTP/1.1 408");
}

TEST_F(Http, ABodyMustKeepUpItsRate) {
  Start({.body_timeout = milliseconds(1000), .min_rate = 10000});
  const std::string head = "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
  std::string reply;
  HttpClient slow(server_->port());
  slow.Send(head);
  for (int i = 0; i < 100 && reply.empty(); ++i) {
    slow.Send(std::string(100, 'a'));
    reply = slow.Read(milliseconds(100), 12);
  }
  EXPECT_EQ(reply, "HTTP/1.1 408");
  // A client that keeps the rate for longer than the timeout. Repeated, because the machine may stop it for a second.
  for (int tries = 0; tries < 10; ++tries) {
    HttpClient steady(server_->port());
    steady.Send(head);
    for (int i = 0; i < 20; ++i) {
      steady.Send(std::string(5000, 'a'));
      std::this_thread::sleep_for(milliseconds(100));
    }
    if ((reply = StatusLine(steady.Read())) == "HTTP/1.1 200") break;
  }
  EXPECT_EQ(reply, "HTTP/1.1 200");
}

TEST_F(Http, AReaderMustKeepUpTheRate) {
  Start({.write_timeout = milliseconds(1000), .min_rate = 100000, .max_unsent_bytes = 64 << 20});
  HttpClient client(server_->port(), 4096);
  client.Send("GET /stream HTTP/1.1\r\n\r\n");  // 4 MiB
  const auto num_busy = [this] { return OnIoThread([this] { return server_->num_busy(); }); };
  size_t read = 0;
  for (int i = 0; i < 400 && !client.ended() && (num_done() == 0 || num_busy() > 0); ++i) {
    read += client.Read(kPatience, 500).size();
    std::this_thread::sleep_for(milliseconds(50));  // about 10 kB per second
  }
  EXPECT_LT(read, size_t{1} << 20);
  EXPECT_EQ(num_busy(), 0u);
}

// A client that reads gets everything, however much an event has.
TEST_F(Http, AStreamMayBeginWithLargeEvents) {
  Start();
  for (const int receive_buffer : {0, 4096}) {
    HttpClient client(server_->port(), receive_buffer);
    client.Send("GET /events HTTP/1.1\r\nConnection: close\r\n\r\n");
    const std::string reply = client.Read(std::chrono::minutes(2));
    EXPECT_GT(reply.size(), size_t{18} << 20);
    EXPECT_TRUE(reply.ends_with("the end\r\n0\r\n\r\n"));
  }
  EXPECT_EQ(WaitForDone(2).incomplete, "");
}

TEST_F(Http, AStreamThatNobodyReadsIsToldAndThenDropped) {
  Start({.write_timeout = std::chrono::minutes(10),
         .pressure_bytes = 256 << 10,
         .max_unsent_bytes = 8 << 20,
         .unsent_timeout = milliseconds(1500)});
  HttpClient patient(server_->port(), 4096);
  patient.Send("GET /endless HTTP/1.1\r\n\r\n");
  for (int i = 0; i < 2000 && num_pressed_ == 0; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(num_pressed_, 1);  // 4 MiB wait
  EXPECT_EQ(num_done(), 0u);
  server_->Post([this] {
    for (int i = 0; i < 128; ++i) held_->Write(std::string(64 << 10, 'x'));  // 12 MiB
  });
  EXPECT_EQ(WaitForDone().incomplete, "slow reader");
  server_->Post([this] { held_.reset(); });
}

TEST_F(Http, RepliesThatNobodyTakesHaveOneBudget) {
  Start({.pressure_bytes = 16 << 10, .max_unsent_total = 1 << 19});
  const std::string request = "GET /large HTTP/1.1\r\n\r\n";  // larger than the budget, and than what sockets take
  auto slow = std::make_unique<HttpClient>(server_->port(), 4096);
  slow->Send(request);
  EXPECT_EQ(StatusLine(slow->Read(kPatience, 12)), "HTTP/1.1 200");
  HttpClient next(server_->port());
  next.Send(request + "GET /echo HTTP/1.1\r\n\r\n");
  std::string refused;
  for (int i = 0; i < 200 && refused.find("HTTP/1.1 200") == std::string::npos; ++i)
    refused += next.Read(milliseconds(100));
  EXPECT_EQ(StatusLine(refused), "HTTP/1.1 503");
  EXPECT_NE(refused.find("Retry-After: 5"), std::string::npos);
  EXPECT_NE(refused.find("HTTP/1.1 200"), std::string::npos);  // a small one finds its place
  slow->Leave();
  slow.reset();
  std::string taken;
  for (int i = 0; i < 2000 && StatusLine(taken) != "HTTP/1.1 200"; ++i)
    taken = Ask("GET /large HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_GT(taken.size(), size_t{1} << 20);
  // One after the other: a reply that was taken no longer counts.
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(StatusLine(Ask("GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")), "HTTP/1.1 200");
}

TEST_F(Http, AStreamBeyondTheBudgetOfRepliesIsDropped) {
  Start({.pressure_bytes = 16 << 10, .max_unsent_total = 4 << 20});
  HttpClient first(server_->port(), 4096), second(server_->port(), 4096);
  first.Send("GET /stream HTTP/1.1\r\n\r\n");  // 4 MiB; sockets take little of it
  EXPECT_EQ(WaitForDone().incomplete, "");
  second.Send("GET /stream HTTP/1.1\r\n\r\n");
  EXPECT_EQ(WaitForDone(2).incomplete, "slow reader");  // below max_unsent_bytes
}

// Allocated bytes; 0 if the allocator has no counters, as under a sanitizer.
size_t HeapBytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_F(Http, ConnectionsHoldNoMoreThanTheirLimits) {
  constexpr size_t kClients = 40;
  Start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (size_t i = 0; i < kClients; ++i) clients.push_back(std::make_unique<HttpClient>(server_->port(), 4096));
  const auto held_by_each = [&](std::string_view bytes) {
    const size_t before = HeapBytes();
    for (auto& client : clients) client->Send(bytes);
    for (int i = 0; i < 50; ++i) OnIoThread([] { return 0; });
    std::this_thread::sleep_for(milliseconds(300));
    return HeapBytes() < before ? 0 : (HeapBytes() - before) / kClients;
  };
  // Short lines: the parser makes a field of each.
  std::string lines = "GET /x HTTP/1.1\r\n";
  while (lines.size() < 30000) lines += "a:\r\n";
  EXPECT_LT(held_by_each(lines), 64u << 10);
  clients.clear();
  for (int i = 0; i < 2000 && OnIoThread([this] { return server_->num_connections(); }) > 0; ++i)
    std::this_thread::sleep_for(milliseconds(5));
  for (size_t i = 0; i < kClients; ++i) clients.push_back(std::make_unique<HttpClient>(server_->port(), 4096));
  EXPECT_LT(held_by_each("GET /keep HTTP/1.1\r\n\r\n" + std::string(140 << 10, 'G')), 80u << 10);
}

TEST_F(Http, OfAMethodThatNobodyTakesLittleIsKept) {
  Start();
  const std::string request = std::string(20000, 'A') + " /closed HTTP/1.1\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(StatusLine(Ask(request)), "HTTP/1.1 401");
  WaitForDone();
  const std::lock_guard lock(mutex_);
  EXPECT_LE(longest_method_, 32u);
  EXPECT_GT(longest_method_, 0u);
}

TEST_F(Http, AReplyEndsOnceWhereItsLastBytesAreTooMany) {
  Start();
  const std::string request = "GET /short HTTP/1.1\r\n\r\n";
  {
    HttpClient client(server_->port());
    client.Send(request);
    client.Read(kPatience, 12);
  }
  const size_t all = WaitForDone().sent_bytes;
  // Another reply holds all of the budget but one byte less than this one needs.
  Restart({.pressure_bytes = 0, .max_unsent_total = (1 << 20) + all - 1});
  HttpClient slow(server_->port(), 4096);
  slow.Send("GET /large HTTP/1.1\r\n\r\n");
  EXPECT_EQ(StatusLine(slow.Read(kPatience, 12)), "HTTP/1.1 200");
  HttpClient client(server_->port());
  client.Send(request);
  client.Read();
  EXPECT_EQ(WaitForDone(3).incomplete, "slow reader");
  EXPECT_EQ(num_done(), 3u);
}

TEST_F(Http, ASilentConnectionIsClosed) {
  Start({.keep_alive = milliseconds(1000)});
  HttpClient fresh(server_->port());
  std::unique_ptr<HttpClient> used;
  std::string reply;
  for (int i = 0; i < 20 && reply.empty(); ++i) {  // tries again if the machine was stopped for a second
    used = std::make_unique<HttpClient>(server_->port());
    used->Send("GET /echo HTTP/1.1\r\n\r\n");
    reply = used->Read(kPatience, 12);
  }
  EXPECT_EQ(reply, "HTTP/1.1 200");
  fresh.Read();
  used->Read();
  EXPECT_TRUE(fresh.ended() && used->ended());
}

TEST_F(Http, ConnectionsBeyondAllPlacesAreClosed) {
  Start({.max_connections = 3, .num_reserved = 2, .keep_alive = milliseconds(60000)});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(std::make_unique<HttpClient>(server_->port()));
  for (int i = 5; i < 20; ++i) {
    EXPECT_EQ(clients[static_cast<size_t>(i)]->Read(), "");
    EXPECT_TRUE(clients[static_cast<size_t>(i)]->ended());
  }
}

TEST_F(Http, HealthIsReachedWhenAllPlacesAreTaken) {
  std::vector<std::unique_ptr<HttpClient>> held;
  const auto take_all = [&](milliseconds reserved_timeout) {
    held.clear();
    Restart({.max_connections = 3, .num_reserved = 2, .reserved_timeout = reserved_timeout});
    for (int i = 0; i < 3; ++i) {
      held.push_back(std::make_unique<HttpClient>(server_->port()));
      held.back()->Send("GET /echo HTTP/1.1\r\n\r\n");
      EXPECT_EQ(held.back()->Read(kPatience, 12), "HTTP/1.1 200");
    }
  };
  take_all(kPatience);
  EXPECT_EQ(StatusLine(Ask("GET /health HTTP/1.1\r\n\r\n")), "HTTP/1.1 200");
  EXPECT_EQ(StatusLine(Ask("GET /echo HTTP/1.1\r\n\r\n")), "HTTP/1.1 503");
  take_all(milliseconds(1000));
  EXPECT_EQ(StatusLine(Ask("")), "HTTP/1.1 503");  // a silent one does not keep its place
}

// ---- Memory

TEST_F(Http, ARequestThatFindsNoMemoryGetsA503AndTheServerGoesOn) {
  Start();
  EXPECT_EQ(StatusLine(Ask("GET /memory HTTP/1.1\r\n\r\n")), "HTTP/1.1 503");
  EXPECT_EQ(WaitForDone().incomplete, "out of memory");
  EXPECT_EQ(StatusLine(Ask("GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n")), "HTTP/1.1 200");
}

// At any allocation of the I/O thread for a connection and its request.
TEST_F(Http, WhereverMemoryEndsTheNextRequestIsAnswered) {
  Start();
  for (int64_t left = 0, failed = -1; failed != test::num_failed_allocations; ++left) {
    ASSERT_LT(left, 1000);
    failed = test::num_failed_allocations;
    OnIoThread([left] { return test::allocation_limit = {.left = left, .once = true}, true; });
    Ask("POST /echo HTTP/1.1\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
    OnIoThread([] { return test::allocation_limit = {}, true; });
    ASSERT_EQ(StatusLine(Ask("GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n")), "HTTP/1.1 200") << left;
  }
  const auto num_connections = [this] { return OnIoThread([this] { return server_->num_connections(); }); };
  for (int i = 0; i < 2000 && num_connections() > 0; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(num_connections(), 0u);
}

TEST_F(Http, ASweepThatFindsNoMemoryIsNotTheLast) {
  Start({.keep_alive = std::chrono::seconds(1)});
  HttpClient silent(server_->port());
  while (OnIoThread([this] { return server_->num_connections(); }) == 0) std::this_thread::yield();
  const int64_t failed = test::num_failed_allocations;
  OnIoThread([] { return test::allocation_limit = {.left = 0, .once = true}, true; });
  silent.Read();
  EXPECT_TRUE(silent.ended());
  EXPECT_EQ(test::num_failed_allocations, failed + 1);
}

TEST_F(Http, AHandlerOnAnotherThreadMayRunOutOfMemory) {
  Start();
  HttpClient client(server_->port());
  client.Send("GET /hold HTTP/1.1\r\n\r\n");
  for (int i = 0; i < 2000 && num_handled_ == 0; ++i) std::this_thread::sleep_for(milliseconds(5));
  ExchangePtr exchange = OnIoThread([this] { return std::move(held_); });
  ASSERT_NE(exchange, nullptr);
  exchange->OutOfMemory();
  exchange.reset();
  EXPECT_EQ(StatusLine(client.Read()), "HTTP/1.1 503");
}

// ---- The end

// When the exchange of /hold is dropped, its note is destroyed last, just before its connection. By then all other
// owners have dropped the connection. The note of /echo is destroyed with the connection.
TEST_F(Http, AConnectionEndsOnTheIoThreadWhoeverDropsItsExchange) {
  std::optional<HttpClient> client;
  std::promise<std::thread::id> ended;
  std::future<std::thread::id> by = ended.get_future();
  const auto calls = [](std::function<void()> call) {
    return std::shared_ptr<RequestNote>(new RequestNote, [call = std::move(call)](const RequestNote* note) {
      delete note;
      call();
    });
  };
  notes_["/hold"] = calls([&] {
    client.reset();
    (void)by.wait_for(milliseconds(500));
  });
  notes_["/echo"] = calls([&] { ended.set_value(std::this_thread::get_id()); });
  Start();
  client.emplace(server_->port());
  client->Send("GET /hold HTTP/1.1\r\n\r\n");
  for (int i = 0; i < 2000 && num_handled_ == 0; ++i) std::this_thread::sleep_for(milliseconds(5));
  ExchangePtr exchange = OnIoThread([this] { return std::move(held_); });
  ASSERT_NE(exchange, nullptr);
  exchange->Respond(200, "text/plain", "");
  WaitForDone();
  client->Send("GET /echo HTTP/1.1\r\n\r\n");
  WaitForDone(2);
  exchange.reset();
  ASSERT_EQ(by.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(by.get(), thread_.get_id());
}

TEST_F(Http, WhileDrainingNewConnectionsAreAnswered) {
  Start();
  HttpClient idle(server_->port());
  idle.Send("GET /echo HTTP/1.1\r\n\r\n");
  EXPECT_EQ(idle.Read(kPatience, 12), "HTTP/1.1 200");
  server_->Post([this] { server_->Drain(); });
  idle.Read();
  EXPECT_TRUE(idle.ended());
  const std::string reply = Ask("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(StatusLine(reply), "HTTP/1.1 200");
  EXPECT_NE(reply.find("Connection: close"), std::string::npos);
}

}  // namespace
}  // namespace dsv4::server
