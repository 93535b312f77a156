// The exchange that handlers get. It forwards their calls to the connection, on the I/O thread, in order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "server/http/http.h"

namespace dsv4::server::http_internal {

class Connection;

// Exchanges that handlers have dropped and the I/O thread has not handled yet. Push needs no memory and never blocks
// for long.
class LetGoList {
 public:
  struct Node {
    std::shared_ptr<Connection> connection;
    std::shared_ptr<const std::atomic<int>> num_queued;  // calls of the exchange that are still queued
    uint64_t serial = 0;
    bool out_of_memory = false;
    std::unique_ptr<Node> next = nullptr;
  };

  void Push(std::unique_ptr<Node> node) noexcept;
  // Handles the exchanges whose calls have all been carried out. On the I/O thread.
  void Settle();

 private:
  std::mutex mutex_;
  std::unique_ptr<Node> first_;
};

class ExchangeImpl : public Exchange {
 public:
  ExchangeImpl(std::shared_ptr<Connection> connection, boost::asio::io_context& context, LetGoList& let_go,
               uint64_t serial, HttpRequest request);
  // Gives the connection away, so that a connection is always destroyed on the I/O thread, whichever thread drops the
  // exchange.
  ~ExchangeImpl() override;

  const HttpRequest& request() const override { return request_; }
  void DropBody() override { request_.body = std::string(); }
  void OutOfMemory() noexcept override;

  void Respond(int status, std::string_view type, std::string body, HeaderList headers) override;
  void StartStream(int status, std::string_view type, HeaderList headers) override;
  void Write(std::string bytes) override;
  void FinishStream() override;
  void SetPing(std::string bytes, std::chrono::seconds silence) override;
  void OnClose(std::function<void()> call) override;
  void OnPressure(std::function<void(bool)> call) override;

 private:
  bool IsNext() const { return *num_queued_ == 0 && context_.get_executor().running_in_this_thread(); }
  // `call` gets the connection on the I/O thread, after the calls before it.
  template <typename Call>
  void Do(Call call);

  std::shared_ptr<Connection> connection_;  // null after the destructor has begun
  boost::asio::io_context& context_;
  LetGoList& let_go_;
  const uint64_t serial_;
  HttpRequest request_;
  const std::shared_ptr<std::atomic<int>> num_queued_ = std::make_shared<std::atomic<int>>(0);
  std::unique_ptr<LetGoList::Node> node_ = std::make_unique<LetGoList::Node>();
  std::atomic<bool> out_of_memory_{false};
};

}  // namespace dsv4::server::http_internal
