#include "core/controller/outbox.h"

#include <algorithm>
#include <variant>

#include "base/assert.h"

namespace holdfast::controller {

void Outbox::add(Action action) {
  if (const auto* store = std::get_if<Store>(&action)) {
    auto& written = unstored_.emplace_back();
    for (const auto& pair : store->kept) {
      written.keys.push_back(pair.key);
      ++unstored_keys_[pair.key];
      written.bytes += pair.value.size();
    }
    unstored_bytes_ += written.bytes;
  } else if (!unstored_.empty()) {
    if (const Link asker = asker_of(action)) ++held_answers_[asker];
    unstored_.back().held.push_back(std::move(action));
    return;
  }
  actions_.push_back(std::move(action));
}

void Outbox::stored() {
  HF_ASSERT(!unstored_.empty());
  const auto less = [](auto& counts, const auto& of) {
    const auto count = counts.find(of);
    if (count != counts.end() && --count->second == 0) counts.erase(count);
  };
  Unstored durable = std::move(unstored_.front());
  unstored_.pop_front();
  unstored_bytes_ -= durable.bytes;
  for (const auto& key : durable.keys) less(unstored_keys_, key);
  for (auto& action : durable.held) {
    less(held_answers_, asker_of(action));
    actions_.push_back(std::move(action));
  }
}

// The link whose question this action answers; 0: it answers none.
Link Outbox::asker_of(const Action& action) {
  if (const auto* answer = std::get_if<Answer>(&action)) return answer->link;
  const auto* send = std::get_if<Send>(&action);
  const bool answers = send != nullptr && (std::holds_alternative<wire::Got>(send->message) ||
                                           std::holds_alternative<wire::Kept>(send->message) ||
                                           std::holds_alternative<wire::Addresses>(send->message));
  return answers ? send->link : 0;
}

std::size_t Outbox::held_answers(Link link) const {
  const auto held = held_answers_.find(link);
  return held == held_answers_.end() ? 0 : held->second;
}

bool Outbox::is_unstored(const std::vector<std::string>& keys) const {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const auto& key) { return unstored_keys_.contains(key); });
}

}  // namespace holdfast::controller
