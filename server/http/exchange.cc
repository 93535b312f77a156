#include "server/http/exchange.h"

#include <new>
#include <utility>

#include "server/http/connection.h"

namespace dsv4::server::http_internal {

void LetGoList::Push(std::unique_ptr<Node> node) noexcept {
  const std::lock_guard lock(mutex_);
  node->next = std::move(first_);
  first_ = std::move(node);
}

void LetGoList::Settle() {
  std::unique_ptr<Node> node;
  {
    const std::lock_guard lock(mutex_);
    node = std::move(first_);
  }
  while (node != nullptr) {
    std::unique_ptr<Node> next = std::move(node->next);
    if (*node->num_queued == 0) {
      node->connection->Abandoned(node->serial, node->out_of_memory);
    } else {
      Push(std::move(node));
    }
    node = std::move(next);
  }
}

ExchangeImpl::ExchangeImpl(std::shared_ptr<Connection> connection, boost::asio::io_context& context, LetGoList& let_go,
                           uint64_t serial, HttpRequest request)
    : connection_(std::move(connection)),
      context_(context),
      let_go_(let_go),
      serial_(serial),
      request_(std::move(request)) {}

ExchangeImpl::~ExchangeImpl() {
  node_->connection = std::move(connection_);  // not copied: a copy here could outlive all others and be the last one
  node_->num_queued = num_queued_;
  node_->serial = serial_;
  node_->out_of_memory = out_of_memory_;
  let_go_.Push(std::move(node_));
  try {
    boost::asio::post(context_, [&list = let_go_] { list.Settle(); });
  } catch (const std::bad_alloc&) {
    // The next sweep settles it.
  }
}

void ExchangeImpl::OutOfMemory() noexcept {
  out_of_memory_ = true;
  if (context_.get_executor().running_in_this_thread()) connection_->OutOfMemory(serial_);
}

template <typename Call>
void ExchangeImpl::Do(Call call) {
  ++*num_queued_;
  try {
    boost::asio::post(context_, [connection = connection_, num_queued = num_queued_, call = std::move(call)] {
      connection->Guard([&] { call(*connection); });
      --*num_queued;
    });
  } catch (...) {
    --*num_queued_;
    throw;
  }
}

void ExchangeImpl::Respond(int status, std::string_view type, std::string body, HeaderList headers) {
  Do([serial = serial_, status, type = std::string(type), body = std::move(body),
      headers = std::move(headers)](Connection& c) { c.Respond(serial, status, type, body, headers); });
}

void ExchangeImpl::StartStream(int status, std::string_view type, HeaderList headers) {
  Do([serial = serial_, status, type = std::string(type), headers = std::move(headers)](Connection& c) {
    c.StartStream(serial, status, type, headers);
  });
}

// Nearly all calls are writes on the I/O thread. They run at once if no call of this exchange is queued.
void ExchangeImpl::Write(std::string bytes) {
  if (IsNext()) return connection_->Guard([&] { connection_->Write(serial_, bytes); });
  Do([serial = serial_, bytes = std::move(bytes)](Connection& c) { c.Write(serial, bytes); });
}

void ExchangeImpl::FinishStream() {
  if (IsNext()) return connection_->Guard([&] { connection_->FinishStream(serial_); });
  Do([serial = serial_](Connection& c) { c.FinishStream(serial); });
}

void ExchangeImpl::SetPing(std::string bytes, std::chrono::seconds silence) {
  Do([serial = serial_, bytes = std::move(bytes), silence](Connection& c) { c.SetPing(serial, bytes, silence); });
}

void ExchangeImpl::OnClose(std::function<void()> call) {
  Do([serial = serial_, call = std::move(call)](Connection& c) { c.OnClose(serial, call); });
}

void ExchangeImpl::OnPressure(std::function<void(bool)> call) {
  Do([serial = serial_, call = std::move(call)](Connection& c) { c.OnPressure(serial, call); });
}

}  // namespace dsv4::server::http_internal
