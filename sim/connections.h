// Connections: carry messages between the scheduler and its clients. Messages keep their order
// within a connection, not between two. Any connection may break at any moment.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/job.h"
#include "wire/messages.h"

namespace holdfast::sim {

class Connections {
 public:
  explicit Connections(Job& job) : job_(job) {}

  // `worker` or `agent` is kNone.
  Index add(Index worker, Index agent);
  // All connections before it are closed on both sides.
  [[nodiscard]] Index first_open() const { return first_open_; }
  void skip_closed();

  void send_up(Index link, const wire::Message& message);
  void send_down(Index link, const wire::Message& message);
  // The oldest message that is on its way; nullopt: it can not be decoded.
  [[nodiscard]] std::optional<wire::Message> take_up(Index link);
  [[nodiscard]] std::optional<wire::Message> take_down(Index link);

  // `loses`: what the client sent last is lost.
  void client_is_gone(Index link, bool loses);
  // `survives`: bit 0: what is on its way up; bit 1: what is on its way down.
  void break_link(Index link, std::uint32_t survives);

 private:
  [[nodiscard]] static Letter written(const wire::Message& message);
  [[nodiscard]] std::optional<wire::Message> read(const Letter& letter);

  Job& job_;
  Index first_open_ = 0;
};

}  // namespace holdfast::sim
