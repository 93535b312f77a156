#include "server/api/response_store.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "server/base/json.h"
#include "server/base/memory_reserve.h"

namespace dsv4::server {

namespace {

constexpr size_t kMaxQueuedWrites = size_t{64} << 20;  // bytes; responses beyond it stay in memory only
constexpr size_t kTenantLine = 1024;                   // bytes of a file beyond its response and items, at most
constexpr std::string_view kSuffix = ".json";

// Only ids in the form that NewId makes name a file.
bool IsResponseId(std::string_view id) {
  return id.size() == 29 && id.starts_with("resp_") &&
         id.substr(5).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

size_t SizeOf(const StoredResponse& r) { return r.tenant.size() + r.response.size() + r.items.size(); }

std::string FileOf(const std::string& id) { return id + std::string(kSuffix); }

// nullptr: removes the file. A response that cannot be written stays in memory only.
void WriteOrRemove(const KeptFolder& folder, const std::string& id, const StoredResponse* response) {
  if (response == nullptr) {
    (void)folder.Remove(FileOf(id));  // if it fails, the next start finds the file
    return;
  }
  const std::string tenant = Dump(response->tenant);
  folder.Write(FileOf(id),
               std::array<std::string_view, 6>{tenant, "\n", response->response, "\n", response->items, "\n"});
}

}  // namespace

void ResponseStore::Shelf::Add(const std::string& id, size_t size, Ptr response) {
  Drop(id);
  std::list<std::string> place{id};  // made first: if memory runs out, neither the id nor its place is added
  places[id] = {.bytes = size, .at = place.begin(), .response = std::move(response)};
  ids.splice(ids.begin(), place);
  bytes += size;
}

void ResponseStore::Shelf::Drop(const std::string& id) {
  const auto place = places.find(id);
  if (place == places.end()) return;
  bytes -= place->second.bytes;
  ids.erase(place->second.at);
  places.erase(place);
}

bool ResponseStore::Shelf::Use(const std::string& id) {
  const auto place = places.find(id);
  if (place == places.end()) return false;
  ids.splice(ids.begin(), ids, place->second.at);
  return true;
}

ResponseStore::ResponseStore(size_t max_bytes, std::optional<KeptFolder> folder)
    : max_bytes_(max_bytes), folder_(std::move(folder)) {
  if (!folder_) return;
  ReadFolder();
  thread_ = std::thread([this] { Run(); });
}

ResponseStore::~ResponseStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ResponseStore::Put(const std::string& id, StoredResponse response) {
  const auto kept = std::make_shared<const StoredResponse>(std::move(response));
  const size_t size = SizeOf(*kept);
  if (size > max_bytes_) return;
  const std::lock_guard lock(mutex_);
  AddToMemory(id, kept);
  if (!folder_ || queued_bytes_ + size > kMaxQueuedWrites) return;
  tasks_.emplace_back(id, kept);
  queued_bytes_ += size;
  disk_.Add(id, size, nullptr);
  FitDisk();
  wake_.notify_one();
}

std::shared_ptr<const StoredResponse> ResponseStore::Get(const std::string& tenant, const std::string& id) {
  bool on_disk = false;
  {
    const std::lock_guard lock(mutex_);
    on_disk = disk_.Use(id);
    if (memory_.Use(id)) {
      const Ptr& found = memory_.places[id].response;
      return found->tenant == tenant ? found : nullptr;
    }
  }
  if (!on_disk) return nullptr;
  const Ptr read = ReadFile(id);
  if (read == nullptr || read->tenant != tenant) return nullptr;
  const std::lock_guard lock(mutex_);
  if (disk_.Use(id)) AddToMemory(id, read);
  return read;
}

Status ResponseStore::Remove(const std::string& tenant, const std::string& id) {
  if (Get(tenant, id) == nullptr) return NotFound("there is no response " + id);
  {
    std::unique_lock lock(mutex_);
    DropWrites(id);
    done_.wait(lock, [&] { return current_ == nullptr || *current_ != id; });
    if (folder_) {
      if (Status removed = folder_->Remove(FileOf(id)); !removed.ok()) return removed;
    }
    memory_.Drop(id);
    disk_.Drop(id);
  }
  return folder_ ? folder_->Sync() : Status();
}

void ResponseStore::DropWrites(const std::string& id) {
  std::erase_if(tasks_, [&](const auto& task) {
    if (task.first != id) return false;
    if (task.second != nullptr) queued_bytes_ -= SizeOf(*task.second);
    return true;
  });
}

void ResponseStore::AddToMemory(const std::string& id, Ptr response) {
  const size_t size = SizeOf(*response);
  memory_.Add(id, size, std::move(response));
  while (memory_.bytes > max_bytes_) memory_.Drop(std::string(memory_.ids.back()));
}

void ResponseStore::FitDisk() {
  while (disk_.bytes > max_bytes_) {
    const std::string oldest = disk_.ids.back();
    disk_.Drop(oldest);
    tasks_.emplace_back(oldest, nullptr);
  }
}

void ResponseStore::ReadFolder() {
  std::vector<KeptFolder::Entry> files = folder_->List();
  std::erase_if(files, [&](const KeptFolder::Entry& file) {
    const std::string_view name = file.name;
    if (name.ends_with(".json.tmp")) (void)folder_->Remove(file.name);  // half written by a server that was killed
    return !name.ends_with(kSuffix) || !IsResponseId(name.substr(0, name.size() - kSuffix.size()));
  });
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.changed_ns < b.changed_ns; });
  for (const KeptFolder::Entry& file : files)
    disk_.Add(file.name.substr(0, file.name.size() - kSuffix.size()), static_cast<size_t>(file.bytes), nullptr);
  FitDisk();
}

ResponseStore::Ptr ResponseStore::ReadFile(const std::string& id) const {
  const auto read = folder_->Read(FileOf(id), std::min(max_bytes_, kMaxQueuedWrites) + kTenantLine);
  if (!read) return nullptr;
  const std::string& text = *read;
  // Three lines, each one JSON value.
  const size_t first = text.find('\n'), second = text.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos || !text.ends_with('\n')) return nullptr;
  StoredResponse found{.tenant = {},
                       .response = text.substr(first + 1, second - first - 1),
                       .items = text.substr(second + 1, text.size() - second - 2)};
  try {  // the same limits as for the JSON of a request
    const JsonDocument tenant = ParseJson(std::string_view(text).substr(0, first));
    if (!tenant.root().is_string() || !ParseJson(found.response).root().is_object() ||
        !ParseJson(found.items).root().is_array()) {
      return nullptr;
    }
    found.tenant = tenant.root().get<std::string>();
  } catch (const ApiError&) {
    return nullptr;
  }
  return std::make_shared<const StoredResponse>(std::move(found));
}

void ResponseStore::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const auto task = std::move(tasks_.front());  // not a structured binding: lambdas cannot capture those in Clang 14
    const auto& response = task.second;
    tasks_.pop_front();
    current_ = &task.first;
    lock.unlock();
    // Out of memory: the response stays in memory only, or its file remains until the next start.
    HasMemoryFor([&] { WriteOrRemove(*folder_, task.first, response.get()); });
    lock.lock();
    current_ = nullptr;
    done_.notify_all();
    if (response != nullptr) queued_bytes_ -= SizeOf(*response);
  }
}

}  // namespace dsv4::server
