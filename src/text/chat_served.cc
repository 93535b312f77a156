#include "text/chat_served.h"

#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/str.h"

namespace dsv4 {

namespace {

bool Instructs(const Message& m) { return m.role == Role::kSystem || m.role == Role::kDeveloper; }

void AppendTools(std::vector<std::string> from, std::vector<std::string>* to) {
  std::move(from.begin(), from.end(), std::back_inserter(*to));
}

void JoinLeading(Message m, Message* system) {
  if (!m.content.empty()) system->content += StrCat(system->content.empty() ? "" : "\n\n", m.content);
  AppendTools(std::move(m.tools), &system->tools);
  if (!m.response_format.empty()) system->response_format = std::move(m.response_format);
}

void AddUserText(std::string text, std::vector<Message>* messages) {
  // A task ends its message, so the text goes before it.
  if (!messages->empty() && messages->back().role == Role::kUser && messages->back().task != ChatTask::kNone) {
    Message& user = messages->back();
    if (user.content_blocks.empty()) user.content_blocks.push_back({.text = std::move(user.content)});
    user.content_blocks.push_back({.text = std::move(text)});
    return;
  }
  messages->push_back({.role = Role::kUser, .content = std::move(text)});
}

}  // namespace

ChatRequest ToServed(ChatRequest request, LaterSystem later) {
  Message system{.role = Role::kSystem};
  std::vector<Message> rest;
  bool leading = true, any = false;
  for (Message& m : request.messages) {
    if (!Instructs(m)) {
      leading = leading && m.role == Role::kLatestReminder;
      rest.push_back(std::move(m));
    } else if (leading) {
      any = true;
      JoinLeading(std::move(m), &system);
    } else {
      AppendTools(std::move(m.tools), system.tools.empty() ? &request.tools : &system.tools);
      std::string& format = system.response_format.empty() ? request.response_format : system.response_format;
      if (!m.response_format.empty()) format = std::move(m.response_format);
      if (m.content.empty()) continue;
      const bool tags = later == LaterSystem::kReminderTags;
      AddUserText(tags ? StrCat("<system-reminder>\n", m.content, "\n</system-reminder>") : std::move(m.content),
                  &rest);
    }
  }
  if (any) rest.insert(rest.begin(), std::move(system));
  request.messages = std::move(rest);
  return request;
}

}  // namespace dsv4
